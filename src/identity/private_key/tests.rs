//! Keys in all forms, made by us and by OpenSSL, plain and encrypted.

use super::*;
use crate::identity::key_cipher::{self, ENCRYPTED_LABEL};
use crate::identity::testing::{openssl, openssl_ok};
use data_encoding::HEXLOWER;
use std::fs;

const KEK: &str = "kek";

fn read(dir: &std::path::Path, name: &str) -> Vec<u8> {
    fs::read(dir.join(name)).unwrap()
}

#[test]
fn a_new_key_is_pkcs8_as_the_peer_writes_it() {
    let key = PrivateKey::generate().unwrap();
    assert_eq!(key.form(), KeyForm::Pkcs8);
    let info = PrivateKeyInfo::from_der(key.der()).unwrap();
    assert_eq!(info.algorithm.oid, EC_PUBLIC_KEY);
    assert_eq!(info.algorithm.parameters_oid(), Ok(P256));
    assert!(info.public_key.is_none());
    let inner = EcPrivateKey::from_der(info.private_key).unwrap();
    assert_eq!(inner.version, 1);
    assert_eq!(inner.curve, None);
    assert!(inner.public_key.is_some());
}

#[test]
fn conversions_lose_nothing() {
    let key = PrivateKey::generate().unwrap();
    let sec1 = key.to_traditional().unwrap();
    assert_eq!(sec1.form(), KeyForm::Sec1);
    let inner = EcPrivateKey::from_der(sec1.der()).unwrap();
    assert_eq!(inner.curve, Some(P256));
    assert_eq!(sec1.to_pkcs8().unwrap(), key);
    assert_eq!(sec1.public_key_info(), key.public_key_info());
    assert!(
        sec1.to_block()
            .encode()
            .starts_with("-----BEGIN EC PRIVATE KEY-----\n")
    );
    assert!(!format!("{key:?}").contains(','));
}

#[test]
fn keys_of_openssl_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    openssl_ok(
        path,
        &["ecparam", "-name", "prime256v1", "-genkey", "-out", "p256"],
    );
    openssl_ok(
        path,
        &["ecparam", "-name", "secp384r1", "-genkey", "-out", "p384"],
    );
    openssl_ok(
        path,
        &["ecparam", "-name", "secp521r1", "-genkey", "-out", "p521"],
    );
    openssl_ok(path, &["genrsa", "-traditional", "-out", "rsa", "2048"]);
    openssl_ok(
        path,
        &["pkcs8", "-topk8", "-nocrypt", "-in", "rsa", "-out", "rsa8"],
    );
    for (name, form, algorithm) in [
        ("p256", KeyForm::Sec1, ECDSA_SHA256),
        ("p384", KeyForm::Sec1, ECDSA_SHA384),
        ("rsa", KeyForm::Pkcs1, RSA_SHA256),
        ("rsa8", KeyForm::Pkcs8, RSA_SHA256),
    ] {
        let key = PrivateKey::from_pem(&read(path, name)).unwrap();
        assert_eq!(key.form(), form, "{name}");
        assert_eq!(key.signer().unwrap().algorithm(), algorithm, "{name}");
        let back = key.to_pkcs8().unwrap().to_traditional().unwrap();
        assert_eq!(back, key.to_traditional().unwrap(), "{name}");
        openssl_ok(
            path,
            &[
                "pkey", "-in", name, "-pubout", "-outform", "DER", "-out", "pub",
            ],
        );
        assert_eq!(key.public_key_info().unwrap(), read(path, "pub"), "{name}");
    }
    let p521 = PrivateKey::from_pem(&read(path, "p521")).unwrap();
    let refused = p521.signer().err().unwrap().to_string();
    assert!(refused.contains("P-521"), "{refused}");
}

#[test]
fn malformed_keys() {
    assert_eq!(PrivateKey::from_pem(b"nothing"), Err(KeyError::NotPem));
    for der in [&b""[..], b"\x30\x03\x02\x01\x01", &[0xff; 64]] {
        assert_eq!(PrivateKey::from_der(der), Err(KeyError::Malformed));
    }
    let mut cut = PrivateKey::generate().unwrap().der().to_vec();
    cut.pop();
    assert_eq!(PrivateKey::from_der(&cut), Err(KeyError::Malformed));
}

// 02-A18
#[test]
fn openssl_opens_what_we_encrypt() {
    let dir = tempfile::tempdir().unwrap();
    let pkcs8 = PrivateKey::generate().unwrap();
    let pass = format!("pass:{KEK}");
    for key in [pkcs8.clone(), pkcs8.to_traditional().unwrap()] {
        let block = key_cipher::encrypt(&key, KEK.as_bytes()).unwrap();
        let label = match key.form() {
            KeyForm::Pkcs8 => ENCRYPTED_LABEL,
            _ => SEC1_LABEL,
        };
        assert_eq!(block.label, label);
        assert!(key_cipher::is_encrypted(&block));
        fs::write(dir.path().join("key"), block.encode().as_bytes()).unwrap();
        let arguments = [
            "pkey", "-in", "key", "-passin", &pass, "-outform", "DER", "-out", "out",
        ];
        openssl_ok(dir.path(), &arguments);
        let opened = PrivateKey::from_der(&read(dir.path(), "out")).unwrap();
        assert_eq!(opened.public_key_info(), pkcs8.public_key_info());
        let (_, opens) = openssl(dir.path(), &["pkey", "-in", "key", "-passin", "pass:other"]);
        assert!(!opens);
    }
}

// 02-A18, 01-A28
#[test]
fn we_open_what_openssl_encrypts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let plain = PrivateKey::generate().unwrap().to_traditional().unwrap();
    fs::write(path.join("plain"), plain.to_block().encode().as_bytes()).unwrap();
    let pass = format!("pass:{KEK}");
    let pkcs8 = [
        "pkcs8",
        "-topk8",
        "-v2",
        "aes-256-cbc",
        "-v2prf",
        "hmacWithSHA1",
        "-iter",
        "2048",
        "-in",
        "plain",
        "-passout",
        &pass,
        "-out",
        "pkcs8",
    ];
    openssl_ok(path, &pkcs8);
    let mut files = vec!["pkcs8".to_owned()];
    for cipher in ["aes256", "aes192", "aes128", "des3"] {
        let option = format!("-{cipher}");
        openssl_ok(
            path,
            &[
                "ec", "-in", "plain", &option, "-passout", &pass, "-out", cipher,
            ],
        );
        files.push(cipher.to_owned());
    }
    for file in files {
        let block = pem::first(&read(path, &file)).unwrap();
        assert!(key_cipher::is_encrypted(&block), "{file}");
        let opened = key_cipher::decrypt(&block, Some(KEK.as_bytes())).unwrap();
        assert_eq!(opened.public_key_info(), plain.public_key_info(), "{file}");
        let wrong = key_cipher::decrypt(&block, Some(b"wrong"));
        assert_eq!(wrong, Err(KeyError::WrongPassword), "{file}");
        assert_eq!(
            key_cipher::decrypt(&block, None),
            Err(KeyError::Encrypted),
            "{file}"
        );
        let empty = key_cipher::decrypt(&block, Some(b""));
        assert_eq!(empty, Err(KeyError::Encrypted), "{file}");
    }
}

#[test]
fn a_plain_key_opens_under_any_password() {
    let key = PrivateKey::generate().unwrap();
    let mut block = key.to_block();
    // The label does not count.
    block.label = ENCRYPTED_LABEL.to_owned();
    assert!(!key_cipher::is_encrypted(&block));
    assert_eq!(key_cipher::decrypt(&block, Some(b"any")), Ok(key));
}

// 02-A18: about one wrong password in 255 removes the padding of the older form without complaint; what
// comes out is not a key then.
#[test]
fn a_false_positive_of_the_older_form() {
    let key = PrivateKey::generate().unwrap().to_traditional().unwrap();
    for _ in 0..5000 {
        let block = key_cipher::encrypt(&key, b"real").unwrap();
        let opened = key_cipher::decrypt(&block, Some(b"false"));
        assert_eq!(opened, Err(KeyError::WrongPassword));
    }
}

#[test]
fn known_derivations() {
    let iv: [u8; 16] = std::array::from_fn(|at| at as u8);
    let legacy = key_cipher::known::legacy(b"swarm", KEK.as_bytes(), &iv);
    assert_eq!(
        (HEXLOWER.encode(&legacy.0), HEXLOWER.encode(&legacy.1)),
        (
            "543c280a99162e6d356f7dfea5688a5ad05a1ea86b0f73098112cb66ed2b0151".into(),
            "ca351dfedcb43edc19e069aa4a8fd2a2".into()
        )
    );
    let salt = std::array::from_fn(|at| at as u8);
    let pbes2 = key_cipher::known::pbes2(b"swarm", KEK.as_bytes(), &salt, &iv);
    assert_eq!(HEXLOWER.encode(&pbes2), "a2621fd21aa78f02d54d374000c8aec0");
}
