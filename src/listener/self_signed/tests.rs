use rcgen::{DistinguishedName, DnValue, GeneralSubtree, KeyIdMethod, NameConstraints};

use super::*;

fn contents(dir: &Path) -> Vec<Vec<u8>> {
    contents_of(dir, ["ca.crt", "ca.key", "tls.crt", "tls.key"])
}

fn contents_of<const N: usize>(dir: &Path, names: [&str; N]) -> Vec<Vec<u8>> {
    names.map(|name| fs::read(dir.join(name)).unwrap()).to_vec()
}

#[test]
fn a_valid_pair_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let names = names("127.0.0.1".parse().unwrap(), &[]);
    ensure(dir.path(), &names).unwrap();
    let made = contents(dir.path());
    ensure(dir.path(), &names).unwrap();
    assert_eq!(made, contents(dir.path()));
}

#[test]
fn a_new_name_makes_a_new_pair_of_the_same_ca() {
    let dir = tempfile::tempdir().unwrap();
    ensure(dir.path(), &names("127.0.0.1".parse().unwrap(), &[])).unwrap();
    let made = contents(dir.path());
    let more = names(
        "192.0.2.7".parse().unwrap(),
        &["api.example.com".to_owned()],
    );
    let pair = ensure(dir.path(), &more).unwrap();
    let remade = contents(dir.path());
    assert_eq!(made[..2], remade[..2], "the CA stays");
    assert_ne!(made[2..], remade[2..]);
    let ca = ca_of(dir.path());
    assert!(is_valid(&ca, &pair, &more));
    assert!(!is_valid(&ca, &pair, &["elsewhere.example.com".to_owned()]));
}

fn ca_of(dir: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(ca_file(dir)).unwrap()
}

#[test]
fn a_running_proxy_keeps_its_ca_whatever_happens_to_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let (key, names) = (
        dir.path().join("ca.key"),
        names("127.0.0.1".parse().unwrap(), &[]),
    );
    ensure(dir.path(), &names).unwrap();
    let made = contents(dir.path());
    let other_key = KeyPair::generate().unwrap().serialize_pem();
    let more = [names.clone(), vec!["api.example.com".to_owned()]].concat();
    for (content, wanted) in [
        (None, CaProblem::NoKey),
        (Some(other_key), CaProblem::OtherKey),
    ] {
        match content {
            Some(content) => fs::write(&key, content).unwrap(),
            None => fs::remove_file(&key).unwrap(),
        }
        renew(dir.path(), &names).unwrap();
        let renewed = renew(dir.path(), &more);
        let is_wanted =
            |error: &_| matches!(error, SelfSignedError::Ca { problem, .. } if *problem == wanted);
        assert!(renewed.as_ref().is_err_and(is_wanted), "{renewed:?}");
    }
    // A file that is there and cannot be read, as without the right to.
    fs::remove_file(&key).unwrap();
    fs::create_dir(&key).unwrap();
    for result in [renew(dir.path(), &more), ensure(dir.path(), &more)] {
        assert!(
            matches!(result, Err(SelfSignedError::Read { .. })),
            "{result:?}"
        );
    }
    fs::remove_dir(&key).unwrap();
    fs::write(&key, &made[1]).unwrap();
    assert_eq!(made, contents(dir.path()));
}

#[test]
fn a_ca_that_cannot_sign_is_replaced_at_the_start_when_it_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let names = names("127.0.0.1".parse().unwrap(), &[]);
    ensure(dir.path(), &names).unwrap();
    let made = contents(dir.path());
    let other_key = KeyPair::generate().unwrap().serialize_pem();
    fs::write(dir.path().join("ca.key"), other_key).unwrap();
    ensure(dir.path(), &names).unwrap();
    assert_eq!(made[0], contents(dir.path())[0], "the pair is valid");
    fs::remove_file(dir.path().join("tls.crt")).unwrap();
    let pair = ensure(dir.path(), &names).unwrap();
    assert!(is_valid(&ca_of(dir.path()), &pair, &names));
    assert_ne!(made[0], contents(dir.path())[0]);
}

/// Puts a CA that an operator made into a folder.
fn put_foreign_ca(dir: &Path, change: impl FnOnce(&mut CertificateParams)) {
    let key = KeyPair::generate().unwrap();
    let mut params = ca_params();
    params.distinguished_name = DistinguishedName::new();
    change(&mut params);
    let certificate = params.self_signed(&key).unwrap();
    fs::write(dir.join("ca.key"), key.serialize_pem()).unwrap();
    fs::write(ca_file(dir), certificate.pem()).unwrap();
}

#[test]
fn a_ca_with_another_subject_signs_what_its_clients_accept() {
    let names = names("127.0.0.1".parse().unwrap(), &[]);
    let printable = |text: &str| DnValue::PrintableString(text.try_into().unwrap());
    let subjects = [
        vec![(DnType::CommonName, "Example Corp CA".into())],
        vec![
            (DnType::CountryName, printable("DE")),
            (DnType::OrganizationName, printable("Example")),
            (DnType::CommonName, "Prüfstelle".into()),
        ],
    ];
    for subject in subjects {
        let dir = tempfile::tempdir().unwrap();
        put_foreign_ca(dir.path(), |params| {
            for (part, value) in subject {
                params.distinguished_name.push(part, value);
            }
            params.key_identifier_method = KeyIdMethod::PreSpecified(vec![1, 2, 3]);
        });
        let before = contents_of(dir.path(), ["ca.crt", "ca.key"]);
        let pair = ensure(dir.path(), &names).unwrap();
        assert!(is_valid(&ca_of(dir.path()), &pair, &names));
        let made = contents(dir.path());
        assert_eq!(made[..2], before, "the CA stays");
        renew(dir.path(), &names).unwrap();
        assert_eq!(made, contents(dir.path()), "it is signed once");
    }
}

#[test]
fn a_ca_whose_certificates_clients_refuse_is_reported_and_kept() {
    let names = names("127.0.0.1".parse().unwrap(), &[]);
    let named = |params: &mut CertificateParams| {
        params.distinguished_name.push(DnType::CommonName, "ours");
    };
    let constrained = |params: &mut CertificateParams| {
        named(params);
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("example.com".to_owned())],
            excluded_subtrees: Vec::new(),
        });
    };
    let no_authority = |params: &mut CertificateParams| {
        named(params);
        params.is_ca = IsCa::ExplicitNoCa;
    };
    let signs_no_certificates = |params: &mut CertificateParams| {
        named(params);
        params.key_usages = vec![KeyUsagePurpose::CrlSign];
    };
    let signs_for_clients = |params: &mut CertificateParams| {
        named(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    };
    let not_yet_valid = |params: &mut CertificateParams| {
        named(params);
        params.not_before = date_time_ymd(2999, 1, 1);
        params.not_after = date_time_ymd(3999, 1, 1);
    };
    for change in [
        &constrained as &dyn Fn(&mut CertificateParams),
        &no_authority,
        &signs_no_certificates,
        &signs_for_clients,
        &not_yet_valid,
    ] {
        let dir = tempfile::tempdir().unwrap();
        put_foreign_ca(dir.path(), change);
        let before = contents_of(dir.path(), ["ca.crt", "ca.key"]);
        for result in [ensure(dir.path(), &names), renew(dir.path(), &names)] {
            let message = result.unwrap_err().to_string();
            assert!(
                message.contains("would refuse what ca.key signs"),
                "{message}"
            );
        }
        assert_eq!(contents_of(dir.path(), ["ca.crt", "ca.key"]), before);
        assert!(!dir.path().join("tls.crt").exists());
    }
}

/// Lets a CA end in so many days.
fn lasting(params: &mut CertificateParams, days: i32) {
    let date = |days: i32| {
        let date = Zoned::now().date().saturating_add(days.days());
        let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
        date_time_ymd(i32::from(date.year()), month, day)
    };
    params.not_before = date(-10);
    params.not_after = date(days);
}

#[test]
fn an_operators_ca_signs_until_its_end_and_is_never_replaced() {
    let names = names("127.0.0.1".parse().unwrap(), &[]);
    let prepared = |days| {
        let dir = tempfile::tempdir().unwrap();
        put_foreign_ca(dir.path(), |params| {
            params.distinguished_name.push(DnType::CommonName, "ours");
            lasting(params, days);
        });
        dir
    };
    let dir = prepared(10);
    let key_file = dir.path().join("ca.key");
    let key = fs::read_to_string(&key_file).unwrap();
    let curve = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
    fs::write(&key_file, format!("{curve}{key}")).unwrap();
    let before = contents_of(dir.path(), ["ca.crt", "ca.key"]);
    ensure(dir.path(), &names).unwrap();
    assert_eq!(contents(dir.path())[..2], before);

    // A pair that is accepted is served without the key, for as long as that is so.
    let without_key = prepared(10);
    fs::remove_file(without_key.path().join("ca.key")).unwrap();
    let issuer_key = KeyPair::from_pem(&key).unwrap();
    fs::copy(ca_file(dir.path()), ca_file(without_key.path())).unwrap();
    let ca = ca_of(dir.path());
    let issuer = Issuer::from_ca_cert_der(&ca, issuer_key).unwrap();
    let sign_until = |days| {
        let key = KeyPair::generate().unwrap();
        let mut params = serving_params(&names).unwrap();
        lasting(&mut params, days);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let pair = serving_pair(without_key.path());
        fs::write(&pair.key, key.serialize_pem()).unwrap();
        fs::write(&pair.cert, certificate.pem()).unwrap();
    };
    sign_until(5);
    ensure(without_key.path(), &names).unwrap();
    sign_until(-2);
    let message = ensure(without_key.path(), &names).unwrap_err().to_string();
    assert!(message.contains("ca.key is missing"), "{message}");

    let ended = prepared(-1);
    let damaged = prepared(10);
    fs::write(ca_file(damaged.path()), "as in DER").unwrap();
    let other_key = prepared(10);
    let key = KeyPair::generate().unwrap().serialize_pem();
    fs::write(other_key.path().join("ca.key"), key).unwrap();
    let unknown_key = prepared(10);
    fs::write(unknown_key.path().join("ca.key"), "of another kind").unwrap();
    for (dir, wanted) in [
        (ended, "has expired"),
        (damaged, "not a certificate"),
        (other_key, "not the key of ca.crt"),
        (unknown_key, "not the key of ca.crt"),
    ] {
        let before = contents_of(dir.path(), ["ca.crt", "ca.key"]);
        let message = ensure(dir.path(), &names).unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
        assert_eq!(contents_of(dir.path(), ["ca.crt", "ca.key"]), before);
    }
}

#[test]
fn a_pair_that_was_made_while_the_clock_was_ahead_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let names = names("127.0.0.1".parse().unwrap(), &[]);
    let pair = ensure(dir.path(), &names).unwrap();
    let ca_key = fs::read_to_string(dir.path().join("ca.key")).unwrap();
    let issuer = Issuer::new(ca_params(), KeyPair::from_pem(&ca_key).unwrap());
    let key = KeyPair::generate().unwrap();
    let mut params = serving_params(&names).unwrap();
    let ahead = Zoned::now().date().saturating_add(20.days());
    let (month, day) = (ahead.month().unsigned_abs(), ahead.day().unsigned_abs());
    params.not_before = date_time_ymd(i32::from(ahead.year()), month, day);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(&pair.key, key.serialize_pem()).unwrap();
    fs::write(&pair.cert, certificate.pem()).unwrap();
    assert!(!is_valid(&ca_of(dir.path()), &pair, &names));
    let renewed = renew(dir.path(), &names).unwrap();
    assert!(is_valid(&ca_of(dir.path()), &renewed, &names));
}

#[test]
fn an_invalid_name_is_left_out() {
    let names = names("0.0.0.0".parse().unwrap(), &["not a name".to_owned()]);
    assert!(
        !names
            .iter()
            .any(|name| name == "not a name" || name == "0.0.0.0")
    );
}

#[cfg(unix)]
#[test]
fn keys_are_for_the_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    ensure(dir.path(), &names("::1".parse().unwrap(), &[])).unwrap();
    for name in ["ca.key", "tls.key"] {
        let mode = fs::metadata(dir.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}
