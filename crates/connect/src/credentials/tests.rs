//! Credentials from files.
use super::*;

/// There is nobody to ask for another one. A new file is found when it comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_in_a_file_is_not_made_anew_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let certificate = params.self_signed(&key).unwrap().pem();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    file("client.crt", certificate);
    file("client.key", key.serialize_pem());
    let config = "\
        apiVersion: v1\n\
        kind: Config\n\
        current-context: main\n\
        contexts: [{name: main, context: {cluster: main, user: main}}]\n\
        clusters: [{name: main, cluster: {server: \"https://127.0.0.1:1\"}}]\n\
        users: [{name: main, user: {client-certificate: client.crt, client-key: client.key}}]\n";
    let options = ConnectOptions {
        kubeconfig: Some(file("config", config.to_owned())),
        ..ConnectOptions::default()
    };
    let credentials = build(options).await.unwrap();
    let now = Timestamp::now();
    let certificate = credentials.certificate().unwrap();
    assert!(!certificate.is_valid(now), "{certificate:?}");
    let hour = std::time::Duration::from_hours(1);
    assert!(!credentials.is_due(now + hour));
}
