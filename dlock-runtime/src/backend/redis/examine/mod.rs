//! Asks servers what `doctor` wants to know of them, on a thread of its own, as the manager would.
//!
//! | file | owns |
//! |---|---|
//! | `asking` | one question at a time, within the time that is left |
//! | `server` | what is asked of one server |
//! | `probe` | the commands that locks need, tried |
//!
//! What sentinels are asked is with them (`sentinel::examine`). Not here: what the answers mean (`doctor`).

pub(super) mod asking;
mod probe;
mod server;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::backend::redis::examine::asking::Patience;
use crate::backend::redis::link::Route;
use crate::backend::redis::sentinel::Sentinels;
use crate::config::Settings;
use crate::config::sentinel::Watched;
use crate::config::url;
use crate::doctor::facts::{Facts, Part, Server, Terms};
use crate::error::Result;
use crate::protocol::command::{Failure, FailureKind};

/// Reads what there is to know of servers that are written to, each by itself.
pub(crate) async fn examine(servers: Vec<url::Server>, settings: Settings) -> Result<Facts> {
    let terms = terms(&settings, false);
    let namespace = terms.namespace.clone();
    let routes = servers.into_iter().map(|server| Route::new(server, &settings));
    let routes = routes.collect::<Result<Vec<_>>>()?;
    let ask = async move {
        let patience = Patience::new(LIMIT);
        join_all(routes.iter().map(|route| server::ask(route, Part::Master, &namespace, patience))).await
    };
    Ok(Facts { servers: on_a_thread(ask).await?, sentinels: Vec::new(), terms })
}

/// Reads what there is to know of sentinels, of the master that they name, and of its replicas.
pub(crate) async fn examine_by_sentinels(watched: Watched, settings: Settings) -> Result<Facts> {
    let terms = terms(&settings, true);
    let namespace = terms.namespace.clone();
    let entry = watched.master.clone();
    let sentinels = Sentinels::new(watched, &settings)?;
    let ask = async move {
        // One that does not answer must leave time for the servers.
        let said = sentinels.examine(Patience::new(FOR_SENTINELS)).await;
        let patience = Patience::new(AFTER_SENTINELS);
        let Some(master) = said.master else { return (Vec::new(), said.sentinels) };
        let at = |(host, port)| Route::new(url::Server { host, port, ..entry.clone() }, &settings).ok();
        let replicas: Vec<_> = said.replicas.into_iter().filter_map(at).collect();
        let others = replicas.iter().map(|route| server::ask(route, Part::Replica, &namespace, patience));
        let master = at(master);
        let master = async {
            match &master {
                Some(route) => Some(server::ask(route, Part::Master, &namespace, patience).await),
                None => None,
            }
        };
        let (master, others): (_, Vec<Server>) = tokio::join!(master, join_all(others));
        (master.into_iter().chain(others).collect(), said.sentinels)
    };
    let (servers, sentinels) = on_a_thread(ask).await?;
    Ok(Facts { servers, sentinels, terms })
}

fn terms(settings: &Settings, fails_over: bool) -> Terms {
    Terms {
        namespace: settings.namespace.clone(),
        response_timeout: settings.rules.response_timeout,
        poll: settings.rules.poll,
        fails_over,
    }
}

/// Runs questions where there are timers and sockets, whatever the caller's runtime has. Who stops waiting ends them.
async fn on_a_thread<T: Send + 'static>(ask: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let failed = |text: String| Failure::new(FailureKind::Passing, text).of_the_server();
    let (mut tell, told) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(format!("the examination has no runtime: {error}")))?;
    let thread = std::thread::Builder::new().name("dlock-doctor".to_owned()).spawn(move || {
        let asked = runtime.block_on(async {
            tokio::select! {
                asked = ask => Some(asked),
                () = tell.closed() => None,
            }
        });
        if let Some(asked) = asked {
            let _ = tell.send(asked);
        }
    });
    thread.map_err(|error| failed(format!("the examination has no thread: {error}")))?;
    told.await.map_err(|_| failed("the examination ended without an answer".to_owned()))
}

/// What an examination may take in all.
const LIMIT: Duration = Duration::from_secs(5);
const FOR_SENTINELS: Duration = Duration::from_secs(2);
const AFTER_SENTINELS: Duration = LIMIT.saturating_sub(FOR_SENTINELS);
