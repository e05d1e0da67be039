//! What the CA issues, what it accepts as a CA, and how it judges chains.

use super::*;
use crate::api::roles::Role;
use crate::identity::clock::{Clock, unix_secs};
use crate::identity::testing::openssl_ok;
use std::fs;
use std::path::Path;

const HOUR: i64 = 3600;

fn now() -> SystemTime {
    Clock::system().now()
}

fn names(role: Role) -> NodeNames<'static> {
    NodeNames {
        node_id: "node0123456789012345678901",
        role,
        organization: "cluster012345678901234567",
    }
}

fn with_lifetime(root: &RootCa, lifetime: Duration) -> RootCa {
    let (certificate, key) = root.signing_pem().unwrap();
    let parts = RootCaParts {
        roots: root.roots_pem(),
        signing: Some((certificate, key)),
        node_lifetime: lifetime,
        ..RootCaParts::default()
    };
    RootCa::new(parts, now()).unwrap()
}

fn leaf(bundle: &[u8]) -> Certificate {
    Certificate::parse_bundle(bundle).unwrap().swap_remove(0)
}

/// Text that OpenSSL prints for a certificate.
fn printed(pem: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("cert"), pem).unwrap();
    openssl_ok(
        dir.path(),
        &[
            "x509", "-in", "cert", "-noout", "-text", "-nameopt", "RFC2253",
        ],
    )
}

/// A self-signed CA made by OpenSSL: certificate and key.
fn foreign_ca(dir: &Path, key_arguments: &[&str], days: &str) -> (Vec<u8>, Vec<u8>) {
    let mut arguments = vec!["genpkey", "-out", "ca.key"];
    arguments.extend_from_slice(key_arguments);
    openssl_ok(dir, &arguments);
    let arguments = [
        "req",
        "-x509",
        "-new",
        "-key",
        "ca.key",
        "-days",
        days,
        "-subj",
        "/O=Company/OU=One+OU=Two/OU=Three/CN=Company Root",
        "-out",
        "ca.crt",
    ];
    openssl_ok(dir, &arguments);
    let read = |name| fs::read(dir.join(name)).unwrap();
    (read("ca.crt"), read("ca.key"))
}

// 02-A1
#[test]
fn a_generated_root_has_the_peers_profile() {
    let root = RootCa::generate(now()).unwrap();
    let certificate = &root.roots().certificates()[0];
    assert_eq!(certificate.subject, certificate.issuer);
    assert_eq!(certificate.common_name, "swarm-ca");
    assert!(certificate.organizations.is_empty() && certificate.units.is_empty());
    assert_eq!(
        certificate.not_after - certificate.not_before,
        7300 * 24 * HOUR
    );
    let age = unix_secs(now()) - certificate.not_before;
    assert!((270..=330).contains(&age), "{age}");
    assert!(certificate.is_ca && certificate.is_signed_by(certificate));
    let text = printed(root.roots_pem());
    for expected in [
        "Version: 3 (0x2)",
        "Signature Algorithm: ecdsa-with-SHA256",
        "Issuer: CN=swarm-ca\n",
        "NIST CURVE: P-256",
        "X509v3 Key Usage: critical\n                Certificate Sign, CRL Sign\n",
        "X509v3 Basic Constraints: critical\n                CA:TRUE\n",
        "X509v3 Subject Key Identifier",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    for absent in [
        "Authority Key",
        "Alternative Name",
        "Extended Key",
        "pathlen",
    ] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate.der).unwrap();
    let serial = parsed.raw_serial();
    assert!(serial.len() <= 20 && serial[0] & 0x80 == 0 && serial != [0]);
    let (_, key) = root.signing_pem().unwrap();
    assert!(key.starts_with(b"-----BEGIN EC PRIVATE KEY-----\n"));
}

// 02-A2
#[test]
fn nothing_of_a_request_but_its_key_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = [
        "req",
        "-new",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        "key",
        "-subj",
        "/O=evil/OU=swarm-manager/L=here/CN=other",
        "-addext",
        "subjectAltName=DNS:docker.com",
        "-addext",
        "basicConstraints=critical,CA:TRUE",
        "-out",
        "csr",
    ];
    openssl_ok(dir.path(), &arguments);
    let csr = fs::read(dir.path().join("csr")).unwrap();
    let root = RootCa::generate(now()).unwrap();
    for (role, dns) in [
        (
            Role::Worker,
            vec!["swarm-worker", names(Role::Worker).node_id],
        ),
        (
            Role::Manager,
            vec!["swarm-manager", names(Role::Manager).node_id, "swarm-ca"],
        ),
    ] {
        let issued = root.issue(&csr, names(role), now()).unwrap();
        let found = leaf(&issued);
        assert_eq!(found.dns_names, dns);
        assert!(!found.is_ca);
        let text = printed(&issued);
        let subject = format!(
            "Subject: CN={},OU={},O={}\n",
            names(role).node_id,
            role.unit(),
            names(role).organization
        );
        for expected in [
            subject.as_str(),
            "X509v3 Key Usage: critical\n                Digital Signature, Key Encipherment\n",
            "TLS Web Server Authentication, TLS Web Client Authentication\n",
            "X509v3 Basic Constraints: critical\n                CA:FALSE\n",
            "X509v3 Authority Key Identifier",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!text.contains("docker.com"), "{text}");
        let verified = root.verify(&issued, now(), false).unwrap();
        let signer = &root.roots().certificates()[0];
        assert_eq!(verified.issuer_subject, signer.subject);
        assert_eq!(verified.issuer_public_key, signer.public_key_info);
    }
}

#[test]
fn issued_names_are_printable_strings() {
    let root = RootCa::generate(now()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("cert"), root.roots_pem()).unwrap();
    let text = openssl_ok(dir.path(), &["asn1parse", "-in", "cert"]);
    assert_eq!(text.matches("PRINTABLESTRING").count(), 2, "{text}");
}

// 02-A3 (what the signer itself decides)
#[test]
fn the_life_of_a_node_certificate() {
    let root = RootCa::generate(now()).unwrap();
    let key = PrivateKey::generate().unwrap().public_key_info().unwrap();
    for (asked, given) in [
        (Duration::from_secs(3600), HOUR),
        (Duration::from_secs(59 * 60), 90 * 24 * HOUR),
        (Duration::ZERO, 90 * 24 * HOUR),
    ] {
        let issued = with_lifetime(&root, asked).issue_for_key(&key, names(Role::Worker), now());
        let found = leaf(&issued.unwrap());
        let here = unix_secs(now());
        assert!((found.not_after - here - given).abs() <= 60, "{asked:?}");
        assert!((here - HOUR - found.not_before).abs() <= 60, "{asked:?}");
    }
}

// 02-A6
#[test]
fn a_second_root_changes_the_digest() {
    let one = RootCa::generate(now()).unwrap();
    let two = RootCa::generate(now()).unwrap();
    let both = [one.roots_pem(), two.roots_pem()].concat();
    let together = RootCa::trusting(&both, now()).unwrap();
    assert_ne!(together.digest(), one.digest());
    assert_eq!(*together.digest(), sha256(&both));
    assert_eq!(together.roots().certificates().len(), 2);
    assert!(together.digest_text().starts_with("sha256:"));
}

#[test]
fn requests_that_cannot_be_signed() {
    let root = RootCa::generate(now()).unwrap();
    let key = PrivateKey::generate().unwrap();
    let good = issue::signing_request(&key).unwrap();
    assert!(root.issue(&good, names(Role::Worker), now()).is_ok());
    let mut block = pem::first(&good).unwrap();
    block.label = "NEW CERTIFICATE REQUEST".into();
    let old_label = block.encode();
    assert!(
        root.issue(old_label.as_bytes(), names(Role::Worker), now())
            .is_ok()
    );
    block.label = "CERTIFICATE".into();
    let bad_label = block.encode();
    block.label = "CERTIFICATE REQUEST".into();
    *block.der.last_mut().unwrap() ^= 1;
    let bad_signature = block.encode();
    for bad in [
        b"random garbage",
        bad_label.as_bytes(),
        bad_signature.as_bytes(),
    ] {
        let error = root.issue(bad, names(Role::Worker), now()).unwrap_err();
        assert!(error.to_string().contains("CSR Decode failed"), "{error}");
    }
    let refused = root
        .without_signer()
        .issue(&good, names(Role::Worker), now());
    assert_eq!(refused, Err(RootCaError::NoSigner));
}

#[test]
fn our_requests_have_no_names() {
    let dir = tempfile::tempdir().unwrap();
    let csr = issue::signing_request(&PrivateKey::generate().unwrap()).unwrap();
    fs::write(dir.path().join("csr"), &csr).unwrap();
    let text = openssl_ok(
        dir.path(),
        &["req", "-in", "csr", "-noout", "-text", "-verify"],
    );
    assert!(text.contains("Subject: \n"), "{text}");
    assert!(
        text.contains("Signature Algorithm: ecdsa-with-SHA256"),
        "{text}"
    );
}

#[test]
fn foreign_roots_sign_and_their_names_survive() {
    let dir = tempfile::tempdir().unwrap();
    let csr = issue::signing_request(&PrivateKey::generate().unwrap()).unwrap();
    for arguments in [
        &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"][..],
        &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
    ] {
        let (certificate, key) = foreign_ca(dir.path(), arguments, "400");
        let parts = RootCaParts {
            roots: &certificate,
            signing: Some((&certificate, &key)),
            ..RootCaParts::default()
        };
        let root = RootCa::new(parts, now()).unwrap();
        let issued = root.issue(&csr, names(Role::Manager), now()).unwrap();
        let found = leaf(&issued);
        assert_eq!(found.issuer, root.roots().certificates()[0].subject);
        root.verify(&issued, now(), false).unwrap();
        fs::write(dir.path().join("leaf"), &issued).unwrap();
        openssl_ok(dir.path(), &["verify", "-CAfile", "ca.crt", "leaf"]);
    }
}

// 01-A29
#[test]
fn a_p521_root_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"];
    let (certificate, _) = foreign_ca(dir.path(), &curve, "400");
    let error = RootCa::trusting(&certificate, now())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("unsupported ECDSA key parameters"),
        "{error}"
    );
    assert!(error.contains("P-521"), "{error}");
}

#[test]
fn weak_and_unknown_keys_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let weak = ["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024"];
    let (certificate, _) = foreign_ca(dir.path(), &weak, "400");
    let error = RootCa::trusting(&certificate, now())
        .unwrap_err()
        .to_string();
    assert!(error.contains("unsupported RSA key parameters"), "{error}");
    let (certificate, _) = foreign_ca(dir.path(), &["-algorithm", "ed25519"], "400");
    let error = RootCa::trusting(&certificate, now())
        .unwrap_err()
        .to_string();
    assert!(error.contains("unsupported signature algorithm"), "{error}");
}

#[test]
fn parts_that_do_not_belong_together() {
    let one = RootCa::generate(now()).unwrap();
    let two = RootCa::generate(now()).unwrap();
    let (one_certificate, one_key) = one.signing_pem().unwrap();
    let (two_certificate, two_key) = two.signing_pem().unwrap();
    let make = |roots, signing, at| {
        let parts = RootCaParts {
            roots,
            signing: Some(signing),
            ..RootCaParts::default()
        };
        RootCa::new(parts, at).unwrap_err()
    };
    let roots = one.roots_pem();
    assert_eq!(
        make(roots, (one_certificate, two_key), now()),
        RootCaError::KeyMismatch
    );
    assert_eq!(
        make(roots, (one_certificate, b"garbage"), now()),
        RootCaError::MalformedKey
    );
    assert_eq!(make(roots, (b"", one_key), now()), RootCaError::HalfSigner);
    assert_eq!(
        make(roots, (b"garbage", one_key), now()),
        RootCaError::NoSigningCertificate
    );
    assert_eq!(
        make(roots, (two_certificate, two_key), now()),
        RootCaError::SigningCertificate(CertError::UnknownAuthority)
    );
    assert_eq!(
        make(b"", (one_certificate, one_key), now()),
        RootCaError::NoRoots
    );
    let garbage = make(b"garbage", (one_certificate, one_key), now());
    assert!(garbage.to_string().contains("invalid root certificates"));
    for (at, text) in [
        (now() - Duration::from_secs(3600), "not valid before"),
        (now() + Duration::from_secs(8000 * 24 * 3600), "expired"),
    ] {
        let error = make(roots, (one_certificate, one_key), at).to_string();
        assert!(
            error.starts_with("error while validating Root CA Certificate"),
            "{error}"
        );
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn chains_are_judged_at_their_time() {
    let root = RootCa::generate(now() - Duration::from_secs(24 * 3600)).unwrap();
    let root = with_lifetime(&root, Duration::from_secs(3600));
    let key = PrivateKey::generate().unwrap().public_key_info().unwrap();
    let issue_at = |at| root.issue_for_key(&key, names(Role::Worker), at).unwrap();
    let expired = issue_at(now() - Duration::from_secs(5 * 3600));
    let future = issue_at(now() + Duration::from_secs(5 * 3600));
    let error = root.verify(&expired, now(), false).unwrap_err();
    assert!(
        error.is_expired() && error.to_string().contains("not valid after"),
        "{error}"
    );
    assert!(root.verify(&expired, now(), true).is_ok());
    for allow_expired in [false, true] {
        let error = root.verify(&future, now(), allow_expired).unwrap_err();
        assert!(error.to_string().contains("not valid before"), "{error}");
        let foreign = RootCa::generate(now()).unwrap();
        let fresh = issue_at(now());
        let error = foreign.verify(&fresh, now(), allow_expired).unwrap_err();
        assert_eq!(error, CertError::UnknownAuthority);
        let unrelated = [fresh.as_slice(), expired.as_slice()].concat();
        let error = root.verify(&unrelated, now() - Duration::from_secs(1), allow_expired);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("do not form a chain"), "{error}");
    }
    assert_eq!(
        root.verify(b"", now(), false),
        Err(CertError::NoCertificates)
    );
}
