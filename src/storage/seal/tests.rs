use super::*;
use proptest::prelude::*;

fn sealer(dek: &Dek) -> Sealer {
    Sealer::new(DekRing::single(dek.clone()), b"salt", "rows").unwrap()
}

#[test]
fn what_is_sealed_opens_and_hides_its_body() {
    let sealer = sealer(&Dek::generate().unwrap());
    for bytes in [0, 1, 1024, 1025, 100_000] {
        let body = b"secret text ".repeat(bytes / 12 + 1)[..bytes].to_vec();
        let sealed = sealer.seal(&[b"obj", b"key"], b"head", &body).unwrap();
        assert!(!sealed.windows(11).any(|window| window == b"secret text"));
        let opened = sealer.open(&[b"obj", b"key"], 4, &sealed).unwrap();
        assert_eq!(opened.header, b"head");
        assert_eq!(opened.body, body);
        if bytes > COMPRESS_ABOVE_BYTES {
            assert!(
                sealed.len() < bytes,
                "{bytes} repetitive bytes are compressed"
            );
        } else {
            assert_eq!(sealed.len(), bytes + 4 + SEAL_OVERHEAD_BYTES);
        }
    }
}

/// Every single flipped bit, in header, nonce, text and tag.
#[test]
fn every_flipped_bit_is_detected() {
    let sealer = sealer(&Dek::generate().unwrap());
    let sealed = sealer.seal(&[b"obj", b"key"], b"head", b"body").unwrap();
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(
            sealer.open(&[b"obj", b"key"], 4, &changed).is_err(),
            "bit {bit}"
        );
    }
}

// 01-A31
#[test]
fn a_value_opens_only_in_its_own_place() {
    let dek = Dek::generate().unwrap();
    let rows = sealer(&dek);
    let sealed = rows.seal(&[b"obj", b"ab"], b"", b"body").unwrap();
    for context in [
        &[b"obj".as_slice(), b"ac"][..],
        &[b"task", b"ab"],
        &[b"obja", b"b"],
        &[b"objab"],
        &[],
    ] {
        assert_eq!(rows.open(context, 0, &sealed), Err(SealError::Broken));
    }
    let ring = DekRing::single(dek);
    for other in [
        Sealer::new(ring.clone(), b"other salt", "rows").unwrap(),
        Sealer::new(ring, b"salt", "log").unwrap(),
    ] {
        assert_eq!(
            other.open(&[b"obj", b"ab"], 0, &sealed),
            Err(SealError::Broken)
        );
    }
}

#[test]
fn a_rotation_keeps_old_values_readable_until_the_old_key_goes() {
    let (old, new) = (Dek::generate().unwrap(), Dek::generate().unwrap());
    let sealer = sealer(&old);
    let before = sealer.seal(&[b"k"], b"", b"old").unwrap();

    sealer
        .set_keys(DekRing::new(new.clone(), vec![old.clone()]))
        .unwrap();
    let after = sealer.seal(&[b"k"], b"", b"new").unwrap();
    assert_eq!(sealer.open(&[b"k"], 0, &before).unwrap().body, b"old");
    assert_eq!(Sealer::peek(0, &before).unwrap().key_id, old.id().unwrap());
    assert_eq!(Sealer::peek(0, &after).unwrap().key_id, new.id().unwrap());

    sealer.set_keys(DekRing::single(new.clone())).unwrap();
    assert_eq!(sealer.open(&[b"k"], 0, &after).unwrap().body, b"new");
    assert_eq!(
        sealer.open(&[b"k"], 0, &before),
        Err(SealError::UnknownKey {
            key_id: old.id().unwrap(),
            known: new.id().unwrap().to_string(),
        })
    );
}

#[test]
fn a_used_up_key_is_replaced_by_the_next_generation() {
    let dek = Dek::generate().unwrap();
    let sealer = Sealer::with_limit(DekRing::single(dek.clone()), b"salt", "rows", 10).unwrap();
    let sealed: Vec<Vec<u8>> = (0..25_u8)
        .map(|n| sealer.seal(&[&[n]], b"", &[n]).unwrap())
        .collect();
    let generations: std::collections::HashSet<&[u8]> =
        sealed.iter().map(|value| &value[5..9]).collect();
    assert_eq!(generations.len(), 3);
    // Another run of the program, with a generation of its own, reads all of them.
    let other = self::sealer(&dek);
    for (n, value) in (0..25_u8).zip(&sealed) {
        assert_eq!(other.open(&[&[n]], 0, value).unwrap().body, [n]);
    }
}

#[test]
fn keys_are_checked_and_never_printed() {
    assert!(matches!(
        Dek::from_bytes(&[1; 31]),
        Err(SealError::KeyLength(31))
    ));
    let dek = Dek::from_bytes(&[7; 32]).unwrap();
    assert_eq!(format!("{dek:?}"), format!("Dek({})", dek.id().unwrap()));
    assert_eq!(
        dek.id().unwrap(),
        Dek::from_bytes(&[7; 32]).unwrap().id().unwrap()
    );
}

#[test]
fn index_hashes_depend_on_key_index_and_value() {
    let hasher = IndexHasher::new(&[1; 32]);
    let hash = hasher.hash(&[8, 1], b"web");
    assert_eq!(hash, IndexHasher::new(&[1; 32]).hash(&[8, 1], b"web"));
    assert_ne!(hash, IndexHasher::new(&[2; 32]).hash(&[8, 1], b"web"));
    assert_ne!(hash, hasher.hash(&[5, 1], b"web"));
    assert_ne!(hash, hasher.hash(&[8], b"\x01web"));
    assert_ne!(hash, hasher.hash(&[8, 1], b"webs"));
}

proptest! {
    #[test]
    fn garbage_never_opens_or_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let sealer = sealer(&Dek::from_bytes(&[7; 32]).unwrap());
        prop_assert!(sealer.open(&[b"k"], 12, &bytes).is_err());
    }
}
