//! Tries the connections that a manager opens in addition to the one for commands.

use redis::{RedisResult, ServerError};

use crate::backend::redis::probe::command_check::CommandCheck;
use crate::backend::redis::probe::session::{self, ProbeTimeout};
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::inbound::Inbound;
use crate::doctor::facts::{Need, Probe, Refusal, RefusalCause};
use crate::layout::Publish;
use crate::protocol::command::{Failure, FailureKind};

/// Tries each connection, one after the other.
pub(super) async fn all(route: &ConnectTarget, usage: &CommandCheck, timeout: ProbeTimeout) -> Vec<Probe> {
    let mut probes = messages(route, usage, timeout).await;
    if usage.encoding.publish() != Publish::Publish {
        probes.extend(sharded_messages(route, usage, timeout).await);
    }
    if usage.tracks {
        probes.push(tracking(route, timeout).await);
    }
    probes
}

/// Removes the outcomes of sharded channels that the server lacks, if releases are also published
/// on plain ones, as the outcomes for `commands` show.
pub(super) fn remove_unused(others: &mut Vec<Probe>, usage: &CommandCheck, commands: &[Probe]) {
    let publishes = |probe: &Probe| probe.command == "SPUBLISH" && probe.reply.is_ok();
    let needs_sharded = match usage.encoding.publish() {
        Publish::Publish | Publish::Both => false,
        Publish::Spublish => true,
        Publish::Auto => commands.iter().any(publishes),
    };
    let is_sharded = |probe: &Probe| ["SSUBSCRIBE", "SUNSUBSCRIBE"].contains(&probe.command);
    let is_unknown = |probe: &Probe| probe.reply.as_ref().is_err_and(Refusal::is_unknown);
    others.retain(|probe| needs_sharded || !is_sharded(probe) || !is_unknown(probe));
}

/// Tries to receive invalidations, which needs `HELLO 3`, too.
async fn tracking(route: &ConnectTarget, timeout: ProbeTimeout) -> Probe {
    let opened = timeout.wait(route.try_tracking()).await;
    let reply = match opened {
        Ok((_, Some(error))) => Err(session::refusal(route, &error)),
        Ok((_, None)) => Ok(()),
        Err(failure) => Err(unopened(failure, timeout)),
    };
    Probe { command: "CLIENT TRACKING", rule: Some("+client|tracking"), need: Need::Tracking, reply }
}

/// Tries to receive messages, and to end the subscription to the channel of a lock.
async fn messages(route: &ConnectTarget, usage: &CommandCheck, timeout: ProbeTimeout) -> Vec<Probe> {
    let channels = [usage.channel()];
    let subscriber = match timeout.wait(route.try_subscribe(&channels)).await {
        Ok(subscriber) => subscriber,
        Err(failure) => return vec![subscribing("SUBSCRIBE", Err(unopened(failure, timeout)))],
    };
    let refused = subscriber.refused.as_ref();
    let reply = refused.map_or(Ok(()), |error| Err(session::refusal(route, error)));
    let mut probes = vec![subscribing("SUBSCRIBE", reply)];
    if !usage.encoding.has_queue() {
        let (mut sink, command) = (subscriber.sink(), "UNSUBSCRIBE");
        let sent = sink.unsubscribe(&channels);
        let reply = outcome(route, command, subscriber.inbound(), timeout, sent).await;
        probes.push(unsubscribing(command, reply));
    }
    probes
}

/// Does the same as [`messages`] with sharded channels.
async fn sharded_messages(route: &ConnectTarget, usage: &CommandCheck, timeout: ProbeTimeout) -> Vec<Probe> {
    let channels = [usage.channel()];
    let subscriber = match timeout.wait(route.open_for_shards()).await {
        Ok(subscriber) => subscriber,
        Err(failure) => return vec![subscribing("SSUBSCRIBE", Err(unopened(failure, timeout)))],
    };
    let mut sink = subscriber.sink();
    let (inbound, begun) = (subscriber.inbound(), sink.subscribe(&channels));
    let reply = outcome(route, "SSUBSCRIBE", inbound, timeout, begun).await;
    let is_closed = reply.as_ref().is_err_and(|refusal| refusal.cause == RefusalCause::Closed);
    let mut probes = vec![subscribing("SSUBSCRIBE", reply)];
    if !is_closed {
        let reply = outcome(route, "SUNSUBSCRIBE", inbound, timeout, sink.unsubscribe(&channels)).await;
        probes.push(unsubscribing("SUNSUBSCRIBE", reply));
    }
    probes
}

fn subscribing(command: &'static str, reply: Result<(), Refusal>) -> Probe {
    let rule = if command == "SUBSCRIBE" { "+subscribe" } else { "+ssubscribe" };
    Probe { command, rule: Some(rule), need: Need::Telling, reply }
}

fn unsubscribing(command: &'static str, reply: Result<(), Refusal>) -> Probe {
    let rule = if command == "UNSUBSCRIBE" { "+unsubscribe" } else { "+sunsubscribe" };
    Probe { command, rule: Some(rule), need: Need::Unsubscribing, reply }
}

/// Returns why `command` failed on an open connection, if it did.
async fn outcome(
    route: &ConnectTarget,
    command: &str,
    inbound: &Inbound,
    timeout: ProbeTimeout,
    sent: impl Future<Output = RedisResult<()>>,
) -> Result<(), Refusal> {
    let reply = timeout.wait(async { Ok(sent.await) }).await;
    let error = match reply {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(failure) => return Err(timeout.refusal(failure)),
    };
    if let Some(failure) = route.closed_on_command(&error, inbound, command) {
        return Err(unopened(failure, timeout));
    }
    Err(match ServerError::try_from(error) {
        Ok(error) => session::refusal(route, &error),
        Err(error) => timeout.refusal(route.failure(error)),
    })
}

/// Returns why there is no such connection, although there is one for commands: the server closes
/// it on a command, or if the failure lasts, it lacks a command that begins it.
fn unopened(failure: Failure, timeout: ProbeTimeout) -> Refusal {
    let cause = match failure {
        Failure { connection_lost: true, .. } => RefusalCause::Closed,
        Failure { kind: FailureKind::Lasting, .. } => RefusalCause::NoCommand,
        failure => return timeout.refusal(failure),
    };
    Refusal { cause, said: failure.reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::probe::session::ProbeTimeout;
    use crate::backend::redis::tests::resp::{array, bulk, primary, push};
    use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
    use crate::config::Settings;
    use crate::doctor::facts::Deployment;
    use crate::layout::Layout;

    /// Returns the commands that were tried on a server that replies `refusal` to commands with
    /// this name, and the error of each.
    async fn tried(
        topology: Deployment,
        settings: &Settings,
        (refused, refusal): (&'static str, &'static str),
    ) -> Vec<(&'static str, Option<RefusalCause>)> {
        let server = ScriptedServer::start(move |command| {
            let (name, channel) = command.split_once(' ').unwrap_or((command, ""));
            let confirmed = |encode: fn([String; 3]) -> String| {
                encode([bulk(&name.to_lowercase()), bulk(channel), ":1\r\n".to_owned()])
            };
            // The name of another connection is sent with `CLIENT TRACKING`.
            let is_refused =
                if refused.contains(' ') { command.starts_with(refused) } else { name == refused };
            match name {
                _ if is_refused => (!refusal.is_empty()).then(|| format!("{refusal}\r\n")),
                "UNSUBSCRIBE" => Some(confirmed(array)),
                "SSUBSCRIBE" | "SUNSUBSCRIBE" => Some(confirmed(push)),
                _ => Some(primary(command)),
            }
        });
        let route = ConnectTarget::new(server.spec(), settings);
        let usage = CommandCheck::new(topology, settings);
        let probes = all(&route, &usage, ProbeTimeout::new(LIMIT)).await;
        let outcome = |probe: Probe| (probe.command, probe.reply.err().map(|refusal| refusal.cause));
        probes.into_iter().map(outcome).collect()
    }

    #[tokio::test]
    async fn each_connection_that_the_layout_needs_is_tried() {
        let (native, redisson) = (patient(), Settings { layout: Layout::Redisson, ..patient() });
        let both = Settings { publish: Publish::Both, ..redisson.clone() };
        for (topology, settings, expected) in [
            (Deployment::One, &native, "SUBSCRIBE"),
            (Deployment::Quorum, &native, "SUBSCRIBE UNSUBSCRIBE"),
            (Deployment::One, &redisson, "SUBSCRIBE UNSUBSCRIBE"),
            (Deployment::One, &both, "SUBSCRIBE UNSUBSCRIBE SSUBSCRIBE SUNSUBSCRIBE"),
            (Deployment::Cluster, &redisson, "SUBSCRIBE UNSUBSCRIBE SSUBSCRIBE SUNSUBSCRIBE"),
        ] {
            let probes = tried(topology, settings, ("none", "")).await;

            let names: Vec<_> = probes.iter().map(|(command, _)| *command).collect();
            assert_eq!(names.join(" "), expected, "{topology:?}");
            assert!(probes.iter().all(|(_, cause)| cause.is_none()), "{probes:?}");
        }
    }

    #[tokio::test]
    async fn tracking_is_tried_over_its_own_connection() {
        use RefusalCause::{NoCommand, NotPermitted};
        let mut settings = patient();
        settings.rules.tracking = true;
        for (command, reply, expected) in [
            ("none", "", None),
            ("CLIENT", "-NOPERM no", Some(NotPermitted)),
            ("HELLO", "-ERR unknown command 'HELLO'", Some(NoCommand)),
        ] {
            let probes = tried(Deployment::One, &settings, (command, reply)).await;

            assert_eq!(probes, [("SUBSCRIBE", None), ("CLIENT TRACKING", expected)], "{command}");
        }
    }

    #[tokio::test]
    async fn a_refused_command_of_a_subscriber_is_named() {
        use RefusalCause::{NoCommand, NotPermitted};
        let redisson = Settings { layout: Layout::Redisson, ..patient() };
        let (forbidden, unknown) = ("-NOPERM no", "-ERR unknown command");
        for (command, reply, expected) in [
            ("SUBSCRIBE", forbidden, Some(NotPermitted)),
            ("UNSUBSCRIBE", forbidden, Some(NotPermitted)),
            ("UNSUBSCRIBE", unknown, Some(NoCommand)),
            ("SSUBSCRIBE", forbidden, Some(NotPermitted)),
            ("SUNSUBSCRIBE", forbidden, Some(NotPermitted)),
            ("SSUBSCRIBE", unknown, Some(NoCommand)),
        ] {
            let probes = tried(Deployment::Cluster, &redisson, (command, reply)).await;

            let failed: Vec<_> = probes.iter().filter_map(|(name, cause)| Some((*name, (*cause)?))).collect();
            let expected: Vec<_> = expected.map(|cause| (command, cause)).into_iter().collect();
            assert_eq!(failed, expected, "{command}: {reply}");
        }
        let probes = tried(Deployment::Cluster, &redisson, ("HELLO", unknown)).await;
        let plain = [("SUBSCRIBE", None), ("UNSUBSCRIBE", None)];
        assert_eq!(probes, [&plain[..], &[("SSUBSCRIBE", Some(NoCommand))]].concat());
    }

    #[tokio::test]
    async fn a_command_that_closes_its_connection_is_missing() {
        let mut redisson = Settings { layout: Layout::Redisson, ..patient() };
        redisson.rules.tracking = true;
        for (command, missing) in [
            ("SUBSCRIBE", &["SUBSCRIBE"][..]),
            ("UNSUBSCRIBE", &["UNSUBSCRIBE"]),
            ("SSUBSCRIBE", &["SSUBSCRIBE"]),
            ("SUNSUBSCRIBE", &["SUNSUBSCRIBE"]),
            ("HELLO", &["SSUBSCRIBE", "CLIENT TRACKING"]),
            ("CLIENT TRACKING", &["CLIENT TRACKING"]),
        ] {
            let probes = tried(Deployment::Cluster, &redisson, (command, "")).await;

            let failed: Vec<_> = probes.into_iter().filter(|(_, cause)| cause.is_some()).collect();
            let expected: Vec<_> = missing.iter().map(|name| (*name, Some(RefusalCause::Closed))).collect();
            assert_eq!(failed, expected, "{command}");
        }
    }

    #[test]
    fn missing_sharded_channels_matter_if_releases_are_published_on_them_only() {
        let missing = || Err(Refusal { cause: RefusalCause::NoCommand, said: "no".into() });
        for (publish, spublish, are_kept) in [
            (Publish::Auto, Some(Ok(())), true),
            (Publish::Auto, None, false),
            (Publish::Both, Some(Ok(())), false),
            (Publish::Spublish, Some(Ok(())), true),
        ] {
            let settings = Settings { layout: Layout::Redisson, publish, ..patient() };
            let usage = CommandCheck::new(Deployment::Cluster, &settings);
            let commands = spublish.map(|reply| Probe { command: "SPUBLISH", ..subscribing("", reply) });
            let mut others = vec![subscribing("SUBSCRIBE", missing()), subscribing("SSUBSCRIBE", missing())];

            remove_unused(&mut others, &usage, commands.as_slice());

            let expected = if are_kept { 2 } else { 1 };
            assert_eq!(others.len(), expected, "{publish:?}: {others:?}");
        }
    }
}
