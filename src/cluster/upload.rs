//! Copies the local files of a submission to where its driver reads them, and takes them back if it is not submitted.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::submit::Upload;

/// Bytes that are copied between two looks at whether to go on.
const PIECE: usize = 1 << 20;

/// The files and folders that were created, in this order.
#[derive(Debug, Default)]
pub struct Uploaded {
    created: Vec<PathBuf>,
}

impl Uploaded {
    /// Deletes what was created. Returns what is left behind.
    #[must_use]
    pub fn take_back(self) -> Vec<PathBuf> {
        let left = self.created.into_iter().rev().filter(|path| {
            let deleted = if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
            deleted.is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
        });
        let mut left: Vec<PathBuf> = left.collect();
        left.reverse();
        left
    }

    fn copy(&mut self, from: &str, to: &Path, goes_on: &dyn Fn() -> bool) -> anyhow::Result<()> {
        if let Some(folder) = to.parent() {
            let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
            for folder in missing.into_iter().rev() {
                std::fs::create_dir(folder)?;
                self.created.push(folder.to_owned());
            }
        }
        let mut source = File::open(from)?;
        let permissions = source.metadata()?.permissions();
        if !to.exists() {
            self.created.push(to.to_owned());
        }
        let mut target = File::create(to)?;
        let mut piece = vec![0; PIECE];
        loop {
            if !goes_on() {
                bail!("interrupted");
            }
            let read = source.read(&mut piece)?;
            if read == 0 {
                break;
            }
            target.write_all(piece.get(..read).unwrap_or_default())?;
        }
        // Whoever writes to a mounted folder may learn only now that it is full. Some file systems support neither of these.
        match target.sync_all() {
            Err(error) if !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                Err(error)?
            }
            _ => {}
        }
        let _ = std::fs::set_permissions(to, permissions);
        Ok(())
    }
}

/// Copies the files while `goes_on`. Only folders that this machine mounts can be their destination. What was created, on success and
/// after a failure, is in `done`.
pub fn upload(uploads: &[Upload], goes_on: &dyn Fn() -> bool, done: &mut Uploaded) -> anyhow::Result<()> {
    for Upload { from, to } in uploads {
        let path = match to.split_once(':') {
            None => to.as_str(),
            Some(("file", path)) => path.strip_prefix("//").unwrap_or(path),
            Some((scheme, _)) => bail!(
                "cannot upload {from} to {to}: {scheme} is not supported; expected spark.kubernetes.file.upload.path to be a folder or \
                 file:///FOLDER that the driver mounts too, or files at addresses that the driver can read (local://, https://, s3a:// …)"
            ),
        };
        done.copy(from, Path::new(path), goes_on).with_context(|| format!("cannot upload {from} to {to}"))?;
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

    #[test]
    fn upload_that_fails_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        for (name, size) in [("a", 10), ("b", 3 * PIECE)] {
            std::fs::write(folder.path().join(name), vec![7; size]).unwrap();
        }
        let mut done = Uploaded::default();
        upload(&uploads(folder.path(), &["a", "b"]), &|| true, &mut done).unwrap();
        assert_eq!(std::fs::read(folder.path().join("up/id/b")).unwrap().len(), 3 * PIECE);
        assert_eq!(done.take_back(), Vec::<PathBuf>::new());
        assert!(!folder.path().join("up").exists());

        let mut done = Uploaded::default();
        let error = upload(&uploads(folder.path(), &["a", "missing"]), &|| true, &mut done).unwrap_err();
        assert!(format!("{error:#}").contains("cannot upload") && folder.path().join("up/id/a").exists());
        assert!(done.take_back().is_empty() && !folder.path().join("up").exists());

        // Interrupted within a file.
        let (looks, mut done) = (Cell::new(0), Uploaded::default());
        let goes_on = || looks.replace(looks.get() + 1) < 2;
        assert!(upload(&uploads(folder.path(), &["b"]), &goes_on, &mut done).is_err());
        assert!(done.take_back().is_empty() && !folder.path().join("up").exists());
    }

    #[test]
    fn what_others_put_there_stays_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "x").unwrap();
        let mut done = Uploaded::default();
        upload(&uploads(folder.path(), &["a"]), &|| true, &mut done).unwrap();
        std::fs::write(folder.path().join("up/id/other"), "").unwrap();
        assert_eq!(done.take_back(), [folder.path().join("up"), folder.path().join("up/id")]);
        assert!(folder.path().join("up/id/other").exists());
    }

    #[test]
    fn other_destinations_are_refused() {
        let upload_to = |to: &str| Upload { from: "/etc/hostname".to_owned(), to: to.to_owned() };
        let error = upload(&[upload_to("hdfs://nn/x")], &|| true, &mut Uploaded::default()).unwrap_err();
        assert!(error.to_string().contains("hdfs is not supported"), "{error}");
    }
}
