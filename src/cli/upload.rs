//! Copies the local files of a submission to where its driver reads them, and takes them back if it is not submitted.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use usher_runtime::shutdown::Interrupt;
use usher_submit::{SparkConf, Upload};

/// Bytes that are copied between two checks for an interruption.
const PIECE: usize = 1 << 20;

/// The files, folders and objects that were created, in this order.
#[derive(Debug, Default)]
pub(super) struct Uploaded {
    created: Vec<PathBuf>,
    #[cfg(feature = "s3")]
    objects: Vec<super::s3::Written>,
}

impl Uploaded {
    /// What was created.
    pub(super) fn all(&self) -> Vec<String> {
        let files = self.created.iter().map(|path| path.display().to_string());
        #[cfg(feature = "s3")]
        let files = files.chain(self.objects.iter().map(|object| object.uri.clone()));
        files.collect()
    }

    /// Deletes what was created. Returns what is left behind.
    #[must_use]
    pub(super) async fn take_back(self) -> Vec<String> {
        let mut left = Vec::new();
        for path in self.created.into_iter().rev() {
            let deleted = if path.is_dir() { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) };
            if deleted.is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                left.insert(0, path.display().to_string());
            }
        }
        #[cfg(feature = "s3")]
        for object in self.objects {
            left.extend(object.take_back().await);
        }
        left
    }

    fn copy(&mut self, from: &str, to: &Path, may_continue: &dyn Fn() -> bool) -> anyhow::Result<()> {
        if let Some(folder) = to.parent() {
            let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
            for folder in missing.into_iter().rev() {
                std::fs::create_dir(folder)?;
                self.created.push(folder.to_owned());
            }
        }
        let mut source = File::open(from)?;
        if !to.exists() {
            self.created.push(to.to_owned());
        }
        let mut target = File::create(to)?;
        let mut piece = vec![0; PIECE];
        loop {
            if !may_continue() {
                bail!("interrupted");
            }
            let read = source.read(&mut piece)?;
            if read == 0 {
                break;
            }
            target.write_all(piece.get(..read).unwrap_or_default())?;
        }
        // A mounted folder may report only now that it is full. Some file systems do not support it. The mode is that of
        // the umask: the driver is another user.
        match target.sync_all() {
            Err(error) if !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                Err(error)?;
            }
            _ => {}
        }
        Ok(())
    }

    #[cfg(feature = "s3")]
    async fn write(
        &mut self,
        settings: (&SparkConf, &SparkConf),
        paths: (&str, &str),
        interrupt: &mut Interrupt,
    ) -> anyhow::Result<()> {
        let (conf, variables) = settings;
        super::s3::write(conf, variables, paths, interrupt, &mut self.objects).await
    }

    #[cfg(not(feature = "s3"))]
    #[expect(clippy::unused_async, reason = "with S3 it is async")]
    async fn write(&mut self, _: (&SparkConf, &SparkConf), _: (&str, &str), _: &mut Interrupt) -> anyhow::Result<()> {
        bail!("this program was built without support for S3 (the feature s3)")
    }
}

/// Copies the files, until a signal comes. Their destinations are folders that this machine mounts, or S3-compatible storage with the
/// settings of this configuration and of these variables. What was created, on success and after a failure, is in `done`.
pub(super) async fn upload(
    uploads: &[Upload],
    conf: &SparkConf,
    variables: &SparkConf,
    interrupt: &mut Interrupt,
    done: &mut Uploaded,
) -> anyhow::Result<()> {
    for Upload { from, to } in uploads {
        let failed = || format!("cannot upload {from} to {to}");
        match to.split_once(':') {
            None => done.copy(from, Path::new(to), &|| !interrupt.has_come()).with_context(failed)?,
            Some(("file", path)) => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                done.copy(from, path, &|| !interrupt.has_come()).with_context(failed)?;
            }
            Some(("s3a" | "s3n" | "s3", _)) => {
                done.write((conf, variables), (from, to), interrupt).await.with_context(failed)?
            }
            Some((scheme, _)) => bail!(
                "{}: {scheme} is not supported; expected spark.kubernetes.file.upload.path to be a folder or file:///FOLDER that the driver \
                 mounts too, or s3a://BUCKET/PATH, or files at addresses that the driver can read (local://, https://, hdfs:// …)",
                failed()
            ),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn uploads(folder: &Path, names: &[&str]) -> Vec<Upload> {
        let at = |name: &str| folder.join(name).display().to_string();
        names
            .iter()
            .map(|name| Upload { from: at(name), to: format!("file://{}", at(&format!("up/id/{name}"))) })
            .collect()
    }

    async fn sent(uploads: &[Upload], done: &mut Uploaded) -> anyhow::Result<()> {
        upload(uploads, &SparkConf::default(), &SparkConf::default(), &mut Interrupt::never(), done).await
    }

    #[tokio::test]
    async fn upload_that_fails_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        for (name, size) in [("a", 10), ("b", 3 * PIECE)] {
            std::fs::write(folder.path().join(name), vec![7; size]).unwrap();
        }
        let mut done = Uploaded::default();
        sent(&uploads(folder.path(), &["a", "b"]), &mut done).await.unwrap();
        assert_eq!(std::fs::read(folder.path().join("up/id/b")).unwrap().len(), 3 * PIECE);
        assert_eq!(done.take_back().await, Vec::<String>::new());
        assert!(!folder.path().join("up").exists());

        let mut done = Uploaded::default();
        let error = sent(&uploads(folder.path(), &["a", "missing"]), &mut done).await.unwrap_err();
        assert!(format!("{error:#}").contains("cannot upload") && folder.path().join("up/id/a").exists());
        assert!(done.take_back().await.is_empty() && !folder.path().join("up").exists());

        // Interrupted within a file.
        let (looks, mut done) = (Cell::new(0), Uploaded::default());
        let may_continue = || looks.replace(looks.get() + 1) < 2;
        let to = folder.path().join("up/id/b");
        assert!(done.copy(&folder.path().join("b").display().to_string(), &to, &may_continue).is_err());
        assert!(done.take_back().await.is_empty() && !folder.path().join("up").exists());
    }

    #[tokio::test]
    async fn what_others_put_there_stays_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "x").unwrap();
        let mut done = Uploaded::default();
        sent(&uploads(folder.path(), &["a"]), &mut done).await.unwrap();
        std::fs::write(folder.path().join("up/id/other"), "").unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(done.take_back().await, [path("up"), path("up/id")]);
        assert!(folder.path().join("up/id/other").exists());
    }

    #[tokio::test]
    async fn other_destinations_are_refused() {
        let upload_to = |to: &str| Upload { from: "/etc/hostname".to_owned(), to: to.to_owned() };
        let error = sent(&[upload_to("hdfs://nn/x")], &mut Uploaded::default()).await.unwrap_err();
        assert!(error.to_string().contains("hdfs is not supported"), "{error}");
    }
}
