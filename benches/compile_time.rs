//! Measures what the attribute costs the compiler, compared with the same functions without it.
//!
//! ```text
//! cargo run --release -p dlock-benches --bin compile-time -- [--rounds N]
//! ```
//!
//! The program checks two crates with the same [`FUNCTIONS`] functions in turn, annotated and plain
//! (`cargo check`, dependencies warm). It also builds two macro crates in turn, `dlock-macros` and
//! `tokio-macros`, each into an empty folder. A round takes about 30 s and needs no network once
//! the workspace has been built. Figures are medians of the rounds. Processor time is that of all
//! threads of the compiler, and hardly depends on other work on the machine. `OVER` a goal does not
//! fail the program.
//!
//! See also: `ui-tests/tests/size.rs` for the size of the futures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The number of functions of each crate.
const FUNCTIONS: usize = 200;

/// The time that one annotated function may add to a check.
const MOST_FOR_A_FUNCTION: Duration = Duration::from_millis(15);

/// The time by which the macro crate may exceed that of tokio.
///
/// Most applications build the macro crate of tokio anyway.
const MOST_FOR_THE_MACRO: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Failure> {
    let rounds = rounds()?;
    let folder = TempDir::new()?;
    let mut annotated = User::new(&folder, "annotated", &source(true))?;
    let mut plain = User::new(&folder, "plain", &source(false))?;
    for user in [&mut annotated, &mut plain] {
        user.check()?;
        user.times.clear();
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds} ..");
        annotated.check()?;
        plain.check()?;
        ours.push(clean_build("dlock-macros")?);
        theirs.push(clean_build("tokio-macros")?);
    }

    let functions = u32::try_from(FUNCTIONS)?;
    let (with, without) = (Took::median(&annotated.times), Took::median(&plain.times));
    println!("cargo check of {FUNCTIONS} functions: annotated {with}, plain {without}");
    goal("for each annotated function", with.more_than(without) / functions, MOST_FOR_A_FUNCTION);
    let (with, without) = (Took::median(&ours), Took::median(&theirs));
    println!("clean cargo build: dlock-macros {with}, tokio-macros {without}");
    goal("for the macro crate, beyond that of tokio", with.more_than(without), MOST_FOR_THE_MACRO);
    Ok(())
}

fn rounds() -> Result<usize, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(5),
        ["--rounds", rounds] => Ok(rounds.parse::<usize>()?.max(1)),
        _ => Err("write [--rounds N]".into()),
    }
}

fn goal(what: &str, more: Duration, most: Duration) {
    let kept = if more <= most { "within" } else { "OVER" };
    println!("  {:.2} ms {what}: {kept} the goal of {} ms", more.as_secs_f64() * 1000.0, most.as_millis());
}

/// The elapsed time and the processor time of a program.
#[derive(Clone, Copy)]
struct Took {
    wall: Duration,
    processor: Duration,
}

impl Took {
    /// Returns the median of each time, separately.
    fn median(all: &[Self]) -> Self {
        let median = |of: fn(&Self) -> Duration| {
            let mut times: Vec<Duration> = all.iter().map(of).collect();
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default()
        };
        Self { wall: median(|took| took.wall), processor: median(|took| took.processor) }
    }

    /// Returns the greater of the two differences: elapsed time, and processor time.
    fn more_than(self, other: Self) -> Duration {
        let wall = self.wall.saturating_sub(other.wall);
        wall.max(self.processor.saturating_sub(other.processor))
    }
}

impl std::fmt::Display for Took {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2?} (processor {:.2?})", self.wall, self.processor)
    }
}

/// Runs a command until it ends.
fn run(command: &mut Command) -> Result<Took, Failure> {
    let (begun, used) = (Instant::now(), processor_time_of_children()?);
    let ended = command.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    if !ended.status.success() {
        return Err(format!("{command:?}:\n{}", String::from_utf8_lossy(&ended.stderr)).into());
    }
    Ok(Took { wall: begun.elapsed(), processor: processor_time_of_children()?.saturating_sub(used) })
}

/// Returns the processor time of all ended children of this process, and of their children.
fn processor_time_of_children() -> Result<Duration, Failure> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field is a name in parentheses, with any characters; fields 16 and 17 are user and
    // kernel time, in ticks.
    let (_, fields) = stat.rsplit_once(')').ok_or("/proc/self/stat has no name in parentheses")?;
    let mut ticks = 0;
    for field in fields.split_whitespace().skip(13).take(2) {
        ticks += field.parse::<u64>()?;
    }
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.env_remove("RUSTFLAGS").env("CARGO_INCREMENTAL", "0");
    cargo
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Builds a package and its dependencies into an empty folder.
fn clean_build(package: &str) -> Result<Took, Failure> {
    let target = TempDir::new()?;
    let build = ["build", "--offline", "--quiet", "--package", package];
    run(cargo().args(build).current_dir(workspace()).env("CARGO_TARGET_DIR", target.path()))
}

/// A crate that uses the library.
struct User {
    root: PathBuf,
    source: String,
    target: PathBuf,
    times: Vec<Took>,
}

impl User {
    fn new(folder: &TempDir, name: &str, source: &str) -> Result<Self, Failure> {
        let (root, target) = (folder.path().join(name), folder.path().join("target"));
        fs::create_dir_all(root.join("src"))?;
        let runtime = workspace().join("dlock-runtime").canonicalize()?;
        fs::write(
            root.join("Cargo.toml"),
            format!(
                "[package]\nname = \"{name}\"\nedition = \"2024\"\n[dependencies]\ndlock-runtime.path = \"{}\"\n[workspace]\n",
                runtime.display()
            ),
        )?;
        // Use the versions that are already downloaded.
        fs::copy(workspace().join("Cargo.lock"), root.join("Cargo.lock"))?;
        Ok(Self { root, source: source.to_owned(), target, times: Vec::new() })
    }

    /// Checks the crate after a change to it.
    fn check(&mut self) -> Result<(), Failure> {
        fs::write(self.root.join("src/lib.rs"), format!("{}// {}\n", self.source, self.times.len()))?;
        let check = ["check", "--offline", "--quiet"];
        let took = run(cargo().args(check).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target))?;
        self.times.push(took);
        Ok(())
    }
}

/// Returns the functions, each in a separate module, as in services.
fn source(annotated: bool) -> String {
    let functions = SHAPES.iter().cycle().take(FUNCTIONS).enumerate();
    let modules = functions.map(|(number, (attribute, function))| {
        let attribute = if annotated {
            format!("#[dlock_runtime::distributed_lock({attribute})]\n")
        } else {
            String::new()
        };
        format!("pub mod m{number} {{\n{PRELUDE}{}\n}}\n", function.replace('#', &attribute))
    });
    modules.collect()
}

/// The first lines of every module.
const PRELUDE: &str = "\
#![allow(unused)]
use dlock_runtime::{Error, KeyPart};
pub struct Path<T>(pub T);
pub struct Shop { pub name: String, pub orders: Vec<u64> }
async fn store(id: u64) -> Result<u64, Error> { std::future::ready(()).await; Ok(id) }
";

/// The parameters of the attribute, and a function with `#` as its position.
const SHAPES: &[(&str, &str)] = &[
    (
        r#"key = "order:<user_id>", lease = "30s", retry = 3"#,
        "# pub async fn f(user_id: u64, cart: Vec<u64>) -> Result<u64, Error> {
            let mut sum = 0;
            for line in cart { sum += store(line).await?; }
            Ok(sum + user_id)
        }",
    ),
    (
        r#"key = "shop:<self.name>:<id>", wait = "5s", guard = lock"#,
        "impl Shop { # pub async fn f(&mut self, id: u64) -> Result<usize, Error> {
            self.orders.push(store(id).await?);
            Ok(self.orders.len())
        } }",
    ),
    (
        r#"key = "order:<id>:<name|hash>", retry = 3, backoff = "100ms..2s""#,
        "# pub async fn f(Path(id): Path<u64>, (name, _): (String, u8)) -> Result<String, Error> {
            let id = store(id).await?;
            Ok(format!(\"{id} {name}\"))
        }",
    ),
    (
        r#"key = "all:<id>""#,
        "# pub async fn f<I: KeyPart + Clone, E>(id: I, ids: &[I]) -> Result<Vec<I>, E> where E: From<Error> {
            store(1).await?;
            Ok(ids.iter().cloned().chain([id]).collect())
        }",
    ),
    (
        r#"key = "job:<id>", on_contended = skip, max_hold = "10m""#,
        "# pub async fn f(id: u64) -> Option<u64> {
            let id = store(id).await.ok()?;
            Some(id)
        }",
    ),
    (
        r#"key = "count:<id>", on_contended = return(0)"#,
        "# pub async fn f(id: u64) -> u64 {
            if id == 0 { return 0; }
            store(id).await.unwrap_or_default()
        }",
    ),
    (
        r#"key = "cached:<id>", on_contended = fallback(cached)"#,
        "# pub async fn f(id: u64, name: String) -> Result<u64, Error> {
            store(id + name.len() as u64).await
        }
        async fn cached(id: u64, _: String) -> Result<u64, Error> { store(id).await }",
    ),
    (
        r#"key = format!("order:{id}"), namespace = "shop", min_hold = "5s""#,
        "# pub async fn f(id: u64) -> Result<Box<dyn std::fmt::Display>, Error> {
            let id = store(id).await?;
            Ok(Box::new(id))
        }",
    ),
];
