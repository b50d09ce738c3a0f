//! Reads files with certificates and keys without blocking the thread that renews leases.
//!
//! A path comes from the configuration, so it can name anything: a FIFO without a writer, an
//! endless device, a file on a network file system that hangs. Invariants:
//!
//! - Only regular files are read, and at most [`LARGEST_FILE`] bytes of each.
//! - A read runs on a detached thread, which delays neither the driver nor the end of the process.
//! - At most one such thread exists per manager: a read that hangs does not pile up threads at each
//!   reconnect.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::error::config;
use crate::error::{Error, Result};
use crate::sync::lock;

/// The maximum size of a file with certificates or a key, in bytes. The authorities of an operating
/// system take about 1/4 of it.
pub(crate) const LARGEST_FILE: u64 = 1 << 20;

/// Reads the files of one manager, one at a time.
#[derive(Clone, Debug)]
pub(crate) struct CertificateReader {
    /// One permit, which the reading thread owns until it has finished.
    turn: Arc<Semaphore>,
    current: CurrentFile,
}

/// The option being read and its file: the subject of an error if the read does not end.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurrentFile(Arc<Mutex<(String, String)>>);

impl Default for CertificateReader {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), current: CurrentFile::default() }
    }
}

impl CertificateReader {
    /// Runs `read` on a separate thread, and returns its result.
    ///
    /// # Errors
    ///
    /// The errors of `read`, and an error that names the file if `read` takes longer than `limit`
    /// or an earlier read has not ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        read: impl FnOnce(&CurrentFile) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let has_read = async {
            let turn = Arc::clone(&self.turn).acquire_owned().await;
            let (sender, reply) = oneshot::channel();
            let current = self.current.clone();
            let thread = std::thread::Builder::new().name("dlock-certificates".to_owned()).spawn(move || {
                let read = read(&current);
                drop(turn);
                let _ = sender.send(read);
            });
            thread.map_err(|error| config("tls", format!("no thread reads the certificates: {error}")))?;
            reply.await.map_err(|_| config("tls", "the thread that reads the certificates panicked"))?
        };
        tokio::time::timeout(limit, has_read).await.unwrap_or_else(|_| Err(self.current.too_slow(limit)))
    }
}

impl CurrentFile {
    /// Reads the file of `option`.
    ///
    /// # Errors
    ///
    /// Fails if the file is not regular, is larger than [`LARGEST_FILE`], or cannot be read.
    pub(crate) fn read(&self, option: &str, path: &Path) -> Result<Vec<u8>> {
        self.starts(option, &format!("`{}`", path.display()));
        read_regular(path).map_err(|problem| config(option, format!("`{}` {problem}", path.display())))
    }

    /// Records the file that is read next.
    pub(crate) fn starts(&self, option: &str, what: &str) {
        *lock(&self.0) = (option.to_owned(), what.to_owned());
    }

    fn too_slow(&self, limit: Duration) -> Error {
        let (option, what) = lock(&self.0).clone();
        let problem = format!(
            "{what} could not be read within {} ms (`connect_timeout`): its file system may hang",
            limit.as_millis()
        );
        config(&option, problem)
    }
}

fn read_regular(path: &Path) -> std::result::Result<Vec<u8>, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    // Checked before opening, because opening a FIFO waits for a writer, and after, because the
    // path may name another file by then.
    check(&fs::metadata(path).map_err(unreadable)?)?;
    let file = File::open(path).map_err(unreadable)?;
    check(&file.metadata().map_err(unreadable)?)?;
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    // Files such as those of `/proc` do not state their size.
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LARGEST_FILE {
        return Err(too_large());
    }
    Ok(bytes)
}

fn check(metadata: &Metadata) -> std::result::Result<(), String> {
    if metadata.is_dir() {
        return Err("is a directory: name a file in it".to_owned());
    }
    if !metadata.is_file() {
        return Err("is not a regular file: a FIFO, socket or device is not read".to_owned());
    }
    if metadata.len() > LARGEST_FILE {
        return Err(too_large());
    }
    Ok(())
}

fn too_large() -> String {
    format!("is larger than {} KiB: name a file with the certificates alone", LARGEST_FILE / 1024)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;
    use crate::bounds::assert_listed;

    /// A directory that is deleted when dropped.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("dlock-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a temporary folder can be made");
            Self(path)
        }

        fn file(&self, name: &str, size: u64) -> std::path::PathBuf {
            let path = self.0.join(name);
            let file = File::create(&path).expect("the folder can be written to");
            file.set_len(size).expect("the file can grow");
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn read(path: &Path) -> Result<Vec<u8>> {
        CurrentFile::default().read("tls_ca", path)
    }

    #[track_caller]
    fn assert_refused(path: &Path, words: &str) {
        let refused = read(path).expect_err("it is not a file with certificates").to_string();
        assert!(refused.contains(words) && refused.contains("tls_ca"), "{}: {refused}", path.display());
    }

    #[test]
    fn a_file_is_read_up_to_the_size_limit() {
        let folder = Folder::new("limit");

        assert_eq!(read(&folder.file("largest", LARGEST_FILE)).map(|read| read.len()).ok(), Some(1_048_576));
        assert_refused(&folder.file("too-large", LARGEST_FILE + 1), "larger than 1024 KiB");
        assert_listed("largest file with certificates", &format!("{} MiB", LARGEST_FILE >> 20));
    }

    #[test]
    fn a_directory_and_a_missing_file_are_refused() {
        let folder = Folder::new("directory");

        assert_refused(&folder.0, "is a directory");
        assert_refused(&folder.0.join("missing"), "cannot be read");
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_read() {
        let folder = Folder::new("regular");
        let (fifo, link) = (folder.0.join("fifo"), folder.0.join("link"));
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("`mkfifo` can be run");
        assert!(made.success());
        std::os::unix::fs::symlink("/dev/zero", &link).expect("a link can be made");
        let socket = folder.0.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket can be made");

        for path in [Path::new("/dev/zero"), Path::new("/dev/null"), &link, &fifo, &socket] {
            assert_refused(path, "not a regular file");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_hangs_ends_in_time_and_starts_no_second_thread() {
        let reader = CertificateReader::default();
        let limit = Duration::from_millis(50);
        let (finish, finished) = mpsc::channel::<()>();
        let (start, started) = mpsc::channel();
        let mut hangs = Box::pin(reader.run(limit, move |current| {
            current.starts("tls_cert", "`/nfs/client.pem`");
            let _ = start.send(());
            let _ = finished.recv();
            Ok(())
        }));
        assert!((&mut hangs).now_or_never().is_none());
        // This blocks the runtime, whose clock stands still meanwhile.
        started.recv_timeout(Duration::from_secs(20)).expect("the thread runs");

        let first = hangs.await.expect_err("it hangs").to_string();
        let second = reader.run(limit, |_| Ok(())).await.expect_err("the first is in progress").to_string();
        drop(finish);
        tokio::time::resume(); // the next thread takes real time
        let third = reader.run(Duration::from_secs(20), |_| Ok(7)).await;

        for refused in [first, second] {
            assert!(
                refused.contains("tls_cert: `/nfs/client.pem` could not be read within 50 ms"),
                "{refused}"
            );
        }
        assert_eq!(third.ok(), Some(7));
    }
}
