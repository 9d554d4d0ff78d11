//! Files that change while we run: certificates, the client CA and the policy file.
//!
//! They are polled by content. kubelet updates a mounted Secret or ConfigMap by swapping a symlink, which a watch on the
//! file itself does not show after the first time (`docs/webhooks.md#certificate-files`); two small reads every few seconds do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ring::digest::{Digest, SHA256, digest};

/// So often are changing files read until two reads agree.
const READS: usize = 10;

/// Files that belong together.
#[derive(Debug)]
pub struct Watched {
    paths: Vec<PathBuf>,
    seen: Option<Vec<[u8; 32]>>,
}

impl Watched {
    /// Watches these files; the first read always counts as a change.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Watched { paths, seen: None }
    }

    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The contents, if any differs from the last read. A file that cannot be read is an error, not a change.
    pub async fn read_if_changed(&mut self) -> io::Result<Option<Vec<Vec<u8>>>> {
        let mut contents = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            let read = tokio::fs::read(path).await;
            contents.push(read.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?);
        }
        let hashes: Vec<[u8; 32]> = contents.iter().map(|content| hash(&digest(&SHA256, content))).collect();
        if self.seen.as_ref() == Some(&hashes) {
            return Ok(None);
        }
        self.seen = Some(hashes);
        Ok(Some(contents))
    }

    /// The contents, if any differs from the last read, as soon as two reads this far apart agree: a program that writes a file in
    /// place makes it short first.
    pub async fn read_if_changed_and_at_rest(&mut self, apart: Duration) -> io::Result<Option<Vec<Vec<u8>>>> {
        let taken = self.seen.clone();
        let Some(mut contents) = self.read_if_changed().await? else { return Ok(None) };
        let mut outcome = Err(io::Error::other("the content changes all the time"));
        for _ in 0..READS {
            tokio::time::sleep(apart).await;
            match self.read_if_changed().await {
                Ok(None) => return Ok((self.seen != taken).then_some(contents)),
                Ok(Some(newer)) => contents = newer,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // What was read has not been taken.
        self.seen = taken;
        outcome
    }
}

/// Writes a whole file, with these permissions if it is new.
pub fn write(path: &std::path::Path, text: &str, mode: u32) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())
}

fn hash(digest: &Digest) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest.as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Updates a volume as kubelet does: a new folder, a new `..data` link, one rename; the files are links through `..data`.
    fn swap(root: &std::path::Path, n: u32, content: &str) {
        let folder = root.join(format!("..{n}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("f"), content).unwrap();
        std::os::unix::fs::symlink(format!("..{n}"), root.join("..data_tmp")).unwrap();
        std::fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    }

    #[tokio::test]
    async fn each_symlink_swap_with_new_content_is_detected() {
        let root = tempfile::tempdir().unwrap();
        swap(root.path(), 0, "0");
        std::os::unix::fs::symlink("..data/f", root.path().join("f")).unwrap();
        let mut watched = Watched::new(vec![root.path().join("f")]);
        assert_eq!(watched.read_if_changed().await.unwrap(), Some(vec![b"0".to_vec()]));
        for n in 1..5 {
            assert_eq!(watched.read_if_changed().await.unwrap(), None);
            swap(root.path(), n, &n.to_string());
            assert_eq!(watched.read_if_changed().await.unwrap(), Some(vec![n.to_string().into_bytes()]));
        }
        swap(root.path(), 9, "4");
        assert_eq!(watched.read_if_changed().await.unwrap(), None, "the same content is not a change");
    }

    #[tokio::test(start_paused = true)]
    async fn contents_are_taken_once_two_reads_agree() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("old");
        let mut watched = Watched::new(vec![path.clone()]);
        assert!(watched.read_if_changed().await.unwrap().is_some());
        let apart = Duration::from_secs(1);
        assert_eq!(watched.read_if_changed_and_at_rest(apart).await.unwrap(), None);
        write("");
        let writes = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            write("ne");
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            write("new");
        };
        let (taken, ()) = tokio::join!(watched.read_if_changed_and_at_rest(apart), writes);
        assert_eq!(taken.unwrap(), Some(vec![b"new".to_vec()]));
        // What is as it was before is no change.
        write("other");
        let restores = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            write("new");
        };
        let (taken, ()) = tokio::join!(watched.read_if_changed_and_at_rest(apart), restores);
        assert_eq!(taken.unwrap(), None);
        // A file that vanishes meanwhile is an error, and a change when it is back.
        write("newer");
        let vanishes = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            std::fs::remove_file(&path).unwrap();
        };
        let (taken, ()) = tokio::join!(watched.read_if_changed_and_at_rest(apart), vanishes);
        assert!(taken.is_err());
        write("newer");
        assert_eq!(watched.read_if_changed_and_at_rest(apart).await.unwrap(), Some(vec![b"newer".to_vec()]));
    }

    #[tokio::test]
    async fn missing_file_is_an_error_that_names_its_path() {
        let mut watched = Watched::new(vec!["/nonexistent/spark-usher".into()]);
        assert!(watched.read_if_changed().await.unwrap_err().to_string().starts_with("/nonexistent/spark-usher: "));
    }
}
