//! The pair on disk: its form, its encryption, and what a crash leaves behind.

use super::*;
use crate::api::roles::Role;
use crate::identity::testing::{TestCluster, openssl_ok};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

struct Place {
    dir: TempDir,
    cluster: TestCluster,
}

impl Place {
    fn new() -> Place {
        Place {
            dir: tempfile::tempdir().unwrap(),
            cluster: TestCluster::new(),
        }
    }

    fn certificates(&self) -> PathBuf {
        self.dir.path().join("certificates")
    }

    fn file(&self, kek: Kek) -> KeyFile {
        KeyFile::new(&self.certificates(), kek)
    }

    fn pair(&self) -> NodePair {
        self.cluster.pair("node", Role::Manager)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.certificates()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn mode(&self, name: &str) -> u32 {
        let found = fs::metadata(self.certificates().join(name)).unwrap();
        found.permissions().mode() & 0o7777
    }
}

fn write(file: &KeyFile, pair: &NodePair, kek: Option<Kek>) {
    file.write(&pair.certificate_pem, &pair.key, kek).unwrap();
}

// 02-A17
#[test]
fn the_file_of_an_unlocked_manager() {
    let place = Place::new();
    let file = place.file(Kek::default());
    let pair = place.pair();
    write(&file, &pair, None);
    let dek = file.ensure_dek().unwrap();
    assert_eq!(file.ensure_dek().unwrap(), dek);

    let text = fs::read_to_string(file.key_path()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "-----BEGIN PRIVATE KEY-----");
    assert_eq!(lines[1], "kek-version: 0");
    assert!(lines[2].starts_with("raft-dek: Ei"), "{}", lines[2]);
    assert_eq!(lines[3], "");
    assert!(lines[4..].iter().all(|line| !line.contains(':')));
    assert_eq!(place.mode(KEY_NAME), 0o600);
    assert_eq!(place.mode(CERT_NAME), 0o644);
    assert_eq!(place.names(), [CERT_NAME, KEY_NAME]);

    let again = place.file(Kek::default());
    assert_eq!(again.read().unwrap(), pair);
    assert_eq!(again.dek(), Some(dek));
}

#[test]
fn rewriting_keeps_the_data_keys() {
    let place = Place::new();
    let file = place.file(Kek::default());
    write(&file, &place.pair(), None);
    let dek = file.ensure_dek().unwrap();
    let next = place.pair();
    write(&file, &next, None);
    let again = place.file(Kek::default());
    assert_eq!(again.read().unwrap(), next);
    assert_eq!(again.dek(), Some(dek));
}

// 02-A18
#[test]
fn a_locked_file() {
    let place = Place::new();
    let kek = Kek::new(b"kek", 7);
    let file = place.file(Kek::default());
    let pair = place.pair();
    write(&file, &pair, Some(kek.clone()));
    let dek = file.ensure_dek().unwrap();
    let text = fs::read_to_string(file.key_path()).unwrap();
    assert!(text.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----\nkek-version: 7\n"));
    assert!(text.contains("raft-dek: CAESM"));
    // OpenSSL knows no headers in a PKCS#8 file.
    let bare = pem::first(text.as_bytes()).unwrap();
    let bare = Block::new(&bare.label, bare.der.to_vec()).encode();
    fs::write(place.dir.path().join("bare"), bare.as_bytes()).unwrap();
    openssl_ok(
        place.dir.path(),
        &["pkey", "-in", "bare", "-passin", "pass:kek", "-noout"],
    );

    let again = place.file(Kek::new(b"kek", 0));
    assert_eq!(again.read().unwrap(), pair);
    assert_eq!(again.dek(), Some(dek));
    assert_eq!(again.kek(), kek);
    for wrong in [Kek::default(), Kek::new(b"other", 7)] {
        let error = place.file(wrong).read().unwrap_err();
        assert!(matches!(error, KeyFileError::InvalidKek(_)), "{error}");
    }
    write(&again, &pair, Some(Kek::new(b"", 8)));
    let text = fs::read_to_string(file.key_path()).unwrap();
    assert!(text.starts_with("-----BEGIN PRIVATE KEY-----\nkek-version: 8\n"));
    assert_eq!(place.file(Kek::default()).read().unwrap(), pair);
}

// 02-A18: a wrong key may unpad the older form by chance, and what comes out may even look like a
// key; the sealed data key has the last word.
#[test]
fn a_key_that_only_seems_to_open() {
    let place = Place::new();
    let pair = place.pair();
    let real = Kek::new(b"real", 0);
    let file = place.file(real.clone());
    write(&file, &pair, None);
    file.ensure_dek().unwrap();
    // The key body in clear, beside a data key that is sealed: as if any KEK opened the body.
    let sealed = pem::first(&fs::read(file.key_path()).unwrap()).unwrap();
    let forged = Block {
        headers: sealed.headers,
        ..pair.key.to_block()
    };
    fs::write(file.key_path(), forged.encode().as_bytes()).unwrap();
    let error = place.file(Kek::new(b"false", 0)).read().unwrap_err();
    assert!(matches!(error, KeyFileError::InvalidKek(_)), "{error}");
    assert_eq!(place.file(real).read().unwrap(), pair);
}

#[test]
fn changing_the_data_keys_leaves_the_key_alone() {
    let place = Place::new();
    let file = place.file(Kek::new(b"kek", 3));
    write(&file, &place.pair(), None);
    let before = pem::first(&fs::read(file.key_path()).unwrap()).unwrap();
    file.update_deks(|deks| {
        deks.current = Some(Dek::from_bytes(&[1; 32]));
        deks.pending = Some(Dek::from_bytes(&[2; 32]));
        Ok(())
    })
    .unwrap();
    let after = pem::first(&fs::read(file.key_path()).unwrap()).unwrap();
    assert_eq!((before.label, before.der), (after.label, after.der));
    let read = place.file(Kek::new(b"kek", 0));
    read.read().unwrap();
    assert_eq!(read.deks(), file.deks());
    assert!(read.deks().rotation_due());

    let refused: Result<(), _> =
        file.update_deks(|_| Err(KeyFileError::Headers(DekError::PendingWithoutCurrent)));
    assert!(refused.is_err());
    assert_eq!(read.deks(), file.deks());
}

// 02-A19
#[test]
fn a_crash_between_key_and_certificate() {
    let place = Place::new();
    let file = place.file(Kek::default());
    let (old, new) = (place.pair(), place.pair());
    write(&file, &old, None);
    let next = place.certificates().join(NEXT_CERT_NAME);

    // Before the key was written: the old pair, and a stray certificate nobody looks at.
    fs::write(&next, &new.certificate_pem).unwrap();
    assert_eq!(place.file(Kek::default()).read().unwrap(), old);

    // After the key was written.
    let block = file.key_block(&new.key, &Kek::default()).unwrap();
    file.write_key(&block).unwrap();
    fs::write(place.certificates().join(".tmp-swarm-node.keyX"), "half").unwrap();
    assert_eq!(place.file(Kek::default()).read().unwrap(), new);
    assert_eq!(place.names(), [CERT_NAME, KEY_NAME]);
    let stored = fs::read(file.certificate_path()).unwrap();
    assert_eq!(stored, new.certificate_pem);
}

// 02-A19
#[test]
fn a_foreign_temporary_certificate_is_removed() {
    let place = Place::new();
    let file = place.file(Kek::default());
    write(&file, &place.pair(), None);
    let next = place.certificates().join(NEXT_CERT_NAME);

    fs::write(file.certificate_path(), place.pair().certificate_pem).unwrap();
    fs::write(&next, place.pair().certificate_pem).unwrap();
    let error = file.read().unwrap_err();
    assert!(matches!(error, KeyFileError::Mismatch(_)), "{error}");
    assert!(!next.exists());

    fs::remove_file(file.certificate_path()).unwrap();
    fs::write(&next, "garbage").unwrap();
    assert!(file.read().unwrap_err().is_missing());
    assert!(!next.exists());
}

#[test]
fn keys_of_very_old_versions() {
    let place = Place::new();
    let file = place.file(Kek::default());
    let pair = place.pair();
    write(&file, &pair, None);
    let old = place.certificates().join(OLD_KEY_NAME);
    fs::write(&old, place.pair().key.to_block().encode().as_bytes()).unwrap();
    file.migrate().unwrap();
    assert!(!old.exists());
    fs::rename(file.key_path(), &old).unwrap();
    file.migrate().unwrap();
    assert_eq!(file.read().unwrap(), pair);
    file.migrate().unwrap();
}

#[test]
fn a_reader_always_finds_a_whole_file() {
    let place = Place::new();
    let file = place.file(Kek::default());
    let pair = place.pair();
    write(&file, &pair, None);
    let path = file.key_path();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for version in 0..30 {
                let kek = Kek::new(if version % 2 == 0 { b"kek" } else { b"" }, version);
                write(&file, &pair, Some(kek));
            }
        });
        while !writer.is_finished() {
            assert!(pem::first(&fs::read(&path).unwrap()).is_some());
        }
    });
}

#[test]
fn garbage_is_named() {
    let place = Place::new();
    let file = place.file(Kek::default());
    assert!(file.read().unwrap_err().is_missing());
    write(&file, &place.pair(), None);
    fs::write(file.key_path(), "garbage").unwrap();
    let error = file.read().unwrap_err().to_string();
    assert!(
        error.contains("swarm-node.key") && error.contains("invalid pem bytes"),
        "{error}"
    );
}
