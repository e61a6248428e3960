use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, DnValue, ExtendedKeyUsagePurpose,
    IsCa, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;

use super::*;
use crate::test_support::Pki;

async fn load(ca: &Pki) -> (tempfile::TempDir, Certificates) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    std::fs::write(&file, &ca.ca_pem).unwrap();
    (folder, Certificates::load(file).await.unwrap())
}

#[tokio::test]
async fn a_certificate_names_the_user_and_the_groups() {
    let ca = Pki::new();
    let (_folder, certificates) = load(&ca).await;
    let chain = ca.sign(|params| {
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "jane");
        name.push(
            DnType::OrganizationName,
            DnValue::Utf8String("builders".into()),
        );
        name.push(
            DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]),
            "1234",
        );
    });
    let subject = certificates.verify(&chain).unwrap();
    assert_eq!(
        (&*subject.common_name, &*subject.organizations),
        ("jane", &["builders".to_owned()][..])
    );
    assert_eq!(subject.uid.as_deref(), Some("1234"));
    assert_eq!(subject.fingerprint.len(), 64);
}

#[tokio::test]
async fn certificates_that_upstream_would_refuse_are_refused() {
    let (ca, strangers) = (Pki::new(), Pki::new());
    let (_folder, certificates) = load(&ca).await;
    let jane =
        |params: &mut CertificateParams| params.distinguished_name.push(DnType::CommonName, "jane");
    assert!(certificates.verify(&ca.sign(jane)).is_some());
    assert!(
        certificates.verify(&strangers.sign(jane)).is_none(),
        "another authority"
    );
    assert!(certificates.verify(&[]).is_none());
    let ended = ca.sign(|params| {
        jane(params);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    assert!(certificates.verify(&ended).is_none(), "it has ended");
    let early = ca.sign(|params| {
        jane(params);
        params.not_before = rcgen::date_time_ymd(2090, 1, 1);
        params.not_after = rcgen::date_time_ymd(2091, 1, 1);
    });
    assert!(certificates.verify(&early).is_none(), "it has not begun");
    let server = ca.sign(|params| {
        jane(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    assert!(certificates.verify(&server).is_none(), "not for clients");
    let unknown = ca.sign(|params| {
        jane(params);
        let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        extension.set_criticality(true);
        params.custom_extensions = vec![extension];
    });
    assert!(
        certificates.verify(&unknown).is_none(),
        "a critical extension that is not known"
    );
    let two = ca.sign(|params| {
        jane(params);
        let uid = || DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        params.distinguished_name.push(uid(), "");
    });
    assert!(certificates.verify(&two).is_none(), "an empty unique id");
}

type Shape = fn(&mut CertificateParams);

/// Returns the chain of one certificate in PEM, which came with a key.
fn der((pem, _): (String, String)) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()]
}

fn constrain(params: &mut CertificateParams, length: u8) {
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(length));
}

fn add_critical_policies(params: &mut CertificateParams) {
    // One policy: 1.2.3.4.
    let content = vec![0x30, 7, 0x30, 5, 6, 3, 0x2a, 3, 4];
    let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 32], content);
    extension.set_criticality(true);
    params.custom_extensions.push(extension);
}

#[tokio::test]
async fn certificates_that_only_upstream_takes_are_taken_from_their_authority() {
    let (ca, strangers) = (Pki::new(), Pki::new());
    let (_folder, certificates) = load(&ca).await;
    let first = der(ca.issue_version_1("jane"));
    assert_eq!(certificates.verify(&first).unwrap().common_name, "jane");
    let of_strangers = der(strangers.issue_version_1("jane"));
    assert!(
        certificates.verify(&of_strangers).is_none(),
        "the same names, another key"
    );
    let mut changed = first[0].to_vec();
    let name = changed.windows(4).position(|text| text == b"jane").unwrap();
    changed[name..name + 4].copy_from_slice(b"root");
    assert!(
        certificates.verify(&[changed.into()]).is_none(),
        "its signature is of another"
    );

    let shapes: [(&str, bool, Shape); 6] = [
        ("an authority", true, |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }),
        ("any purpose", true, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any];
        }),
        ("critical policies", true, add_critical_policies),
        ("an authority for servers", false, |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        }),
        ("an authority of the past", false, |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }),
        ("policies twice", false, |params| {
            add_critical_policies(params);
            add_critical_policies(params);
        }),
    ];
    for (what, is_taken, shape) in shapes {
        let signed = |ca: &Pki| {
            ca.sign(|params| {
                params.distinguished_name.push(DnType::CommonName, "jane");
                shape(params);
            })
        };
        assert_eq!(
            certificates.verify(&signed(&ca)).is_some(),
            is_taken,
            "{what}"
        );
        assert!(certificates.verify(&signed(&strangers)).is_none(), "{what}");
    }
}

#[tokio::test]
async fn authorities_that_may_not_sign_clients_are_no_authorities() {
    let shapes: [(&str, bool, Shape); 6] = [
        ("any", true, |_| {}),
        ("of the past", false, |params| {
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }),
        ("no authority", false, |params| {
            params.is_ca = IsCa::ExplicitNoCa;
        }),
        ("for signatures of other things", false, |params| {
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        }),
        ("for servers", false, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        }),
        ("with an extension that is not known", false, |params| {
            let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
            extension.set_criticality(true);
            params.custom_extensions = vec![extension];
        }),
    ];
    for (what, is_taken, shape) in shapes {
        let ca = Pki::shaped(shape);
        let (_folder, certificates) = load(&ca).await;
        let plain = ca.sign(|params| params.distinguished_name.push(DnType::CommonName, "jane"));
        for chain in [plain, der(ca.issue_version_1("jane"))] {
            assert_eq!(certificates.verify(&chain).is_some(), is_taken, "{what}");
        }
    }
}

#[tokio::test]
async fn certificates_below_an_authority_are_as_many_as_it_allows() {
    let cases: [(&str, bool, Shape, Shape); 4] = [
        ("any", true, |_| {}, |_| {}),
        ("one", true, |params| constrain(params, 1), |_| {}),
        ("none", false, |params| constrain(params, 0), |_| {}),
        (
            "whose key signs nothing",
            false,
            |_| {},
            |params| {
                params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            },
        ),
    ];
    for (what, is_taken, shape, below) in cases {
        let ca = Pki::shaped(shape);
        let below = ca.below(below);
        let (_folder, certificates) = load(&ca).await;
        let jane =
            |ca: &Pki| ca.sign(|params| params.distinguished_name.push(DnType::CommonName, "jane"));
        let pem = |ca: &Pki| der((ca.ca_pem.clone(), String::new()));
        let chain = [jane(&below), pem(&below), pem(&ca)].concat();
        assert_eq!(certificates.verify(&chain).is_some(), is_taken, "{what}");
        let more_than_needed = [jane(&ca), pem(&below), pem(&ca)].concat();
        assert!(certificates.verify(&more_than_needed).is_some(), "{what}");
        let with_another = [jane(&below), pem(&ca.below(|_| {})), pem(&below)].concat();
        assert_eq!(
            certificates.verify(&with_another).is_some(),
            is_taken,
            "{what}, and one more"
        );
    }
}

#[tokio::test]
async fn a_name_of_which_something_would_be_left_out_names_nobody() {
    let ca = Pki::new();
    let (_folder, certificates) = load(&ca).await;
    let verified = |names: &[&str]| certificates.verify(&der(ca.issue_named(names)));
    assert_eq!(verified(&["jane", "bob"]).unwrap().common_name, "bob");
    assert_eq!(verified(&["admin", "", "bob"]), None);
}

#[tokio::test]
async fn a_certificate_in_the_file_is_valid_and_signs_nobody() {
    let ca = Pki::shaped(|params| {
        params.is_ca = IsCa::ExplicitNoCa;
        params.distinguished_name.push(DnType::CommonName, "jane");
    });
    let (_folder, certificates) = load(&ca).await;
    let pinned = der((ca.ca_pem.clone(), String::new()));
    assert_eq!(certificates.verify(&pinned).unwrap().common_name, "jane");
    let signed = ca.sign(|params| params.distinguished_name.push(DnType::CommonName, "root"));
    assert_eq!(certificates.verify(&signed), None);
}

#[tokio::test]
async fn a_changed_file_is_loaded_and_a_broken_one_is_not() {
    let (ca, others) = (Pki::new(), Pki::new());
    let (folder, certificates) = load(&ca).await;
    let jane =
        |params: &mut CertificateParams| params.distinguished_name.push(DnType::CommonName, "jane");
    let (old, new) = (ca.sign(jane), others.sign(jane));
    assert!(certificates.verify(&old).is_some() && certificates.verify(&new).is_none());
    let file = folder.path().join("ca.crt");
    std::fs::write(&file, "nothing").unwrap();
    certificates.reload().await;
    assert!(certificates.verify(&old).is_some());
    std::fs::remove_file(&file).unwrap();
    certificates.reload().await;
    assert!(certificates.verify(&old).is_some());
    std::fs::write(&file, &others.ca_pem).unwrap();
    certificates.reload().await;
    assert!(
        certificates.verify(&old).is_none() && certificates.verify(&new).is_some(),
        "verdicts went, too"
    );
}

#[test]
fn authorities_of_the_same_key_overlap() {
    let (clients, others) = (Pki::new(), Pki::new());
    let der = |ca: &Pki| CertificateDer::from_pem_slice(ca.ca_pem.as_bytes()).unwrap();
    assert!(overlap(&[der(&clients)], &[der(&others), der(&clients)]));
    assert!(!overlap(&[der(&clients)], &[der(&others)]));
    // An authority of front proxies that the clients' authority has signed.
    let below = clients.sign(|params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "front-proxies");
    });
    assert!(overlap(&[der(&clients)], &below));
    assert!(!overlap(&below, &[der(&clients)]));
}
