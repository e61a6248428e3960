use super::*;
use crate::test_support::{Pki, connect, connect_by, soon, tls_options};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

/// Accepts one connection, and tells how many certificates each side sees.
async fn handshake(
    tls: &ServerTls,
    pki: &Pki,
    identity: Option<(String, String)>,
) -> std::io::Result<(Vec<u8>, usize)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = tls.acceptor();
    let accepted = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await?;
        let mut stream = acceptor.accept(tcp).await?;
        stream.write_all(b"!").await?;
        Ok::<_, std::io::Error>(
            stream
                .get_ref()
                .1
                .peer_certificates()
                .unwrap_or_default()
                .len(),
        )
    });
    let mut client = soon(connect(address, &pki.roots(), b"h2", identity)).await?;
    // With TLS 1.3 a refusal comes after the client's end of the handshake.
    soon(client.read_exact(&mut [0])).await?;
    let seen = client.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    Ok((seen, soon(accepted).await.unwrap()?))
}

fn put(dir: &tempfile::TempDir, (cert, key): (String, String)) -> (PathBuf, PathBuf) {
    let (cert_file, key_file) = (dir.path().join("my.crt"), dir.path().join("my.key"));
    std::fs::write(&cert_file, cert).unwrap();
    std::fs::write(&key_file, key).unwrap();
    (cert_file, key_file)
}

/// Returns a server that asks for the certificates of clients, and the file of their authority.
async fn asking_for_certificates(
    dir: &tempfile::TempDir,
    server: &Pki,
    clients: &Pki,
) -> (ServerTls, PathBuf) {
    let (cert, key) = put(dir, server.issue("server", &["localhost"]));
    let client_ca = dir.path().join("client-ca.crt");
    std::fs::write(&client_ca, &clients.ca_pem).unwrap();
    let options = TlsOptions {
        cert: Some(cert),
        key: Some(key),
        client_cas: vec![client_ca.clone()],
        ..tls_options(dir)
    };
    (ServerTls::load(options).await.unwrap(), client_ca)
}

#[tokio::test]
async fn changed_certificates_are_served_and_broken_ones_are_not() {
    let pki = Pki::new();
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = put(&dir, pki.issue("one", &["localhost"]));
    let options = TlsOptions {
        cert: Some(cert.clone()),
        key: Some(key.clone()),
        ..tls_options(&dir)
    };
    let tls = ServerTls::load(options).await.unwrap();
    assert_eq!(tls.ca_file(), None);
    let (first, _) = handshake(&tls, &pki, None).await.unwrap();

    // The new certificate is there and its key is not yet: as seen between two writes.
    let (new_cert, new_key) = pki.issue("two", &["localhost"]);
    std::fs::write(&cert, new_cert).unwrap();
    tls.reload().await;
    assert_eq!(handshake(&tls, &pki, None).await.unwrap().0, first);
    std::fs::write(&key, new_key).unwrap();
    tls.reload().await;
    let (second, _) = handshake(&tls, &pki, None).await.unwrap();
    assert_ne!(second, first);

    std::fs::write(&cert, "").unwrap();
    tls.reload().await;
    std::fs::remove_file(&cert).unwrap();
    tls.reload().await;
    assert_eq!(handshake(&tls, &pki, None).await.unwrap().0, second);
}

#[tokio::test]
async fn broken_client_authorities_do_not_keep_a_certificate_from_being_renewed() {
    let (pki, clients) = (Pki::new(), Pki::new());
    let dir = tempfile::tempdir().unwrap();
    let (tls, client_ca) = asking_for_certificates(&dir, &pki, &clients).await;
    let (mut last, _) = handshake(&tls, &pki, None).await.unwrap();
    for breakage in ["not PEM", "removed"] {
        if breakage == "removed" {
            std::fs::remove_file(&client_ca).unwrap();
        } else {
            std::fs::write(&client_ca, breakage).unwrap();
        }
        tls.reload().await;
        put(&dir, pki.issue("another", &["localhost"]));
        tls.reload().await;
        let identity = Some(clients.issue("jane", &[]));
        let (served, shown) = handshake(&tls, &pki, identity).await.unwrap();
        assert_ne!(served, last, "{breakage}");
        assert_eq!(shown, 1, "{breakage}");
        last = served;
    }
}

#[tokio::test]
async fn clients_may_show_any_certificate() {
    let (server, clients, strangers) = (Pki::new(), Pki::new(), Pki::new());
    let dir = tempfile::tempdir().unwrap();
    let (tls, _) = asking_for_certificates(&dir, &server, &clients).await;
    assert_eq!(handshake(&tls, &server, None).await.unwrap().1, 0);
    assert_eq!(
        handshake(&tls, &server, Some(clients.issue("jane", &[])))
            .await
            .unwrap()
            .1,
        1
    );
    // Who they are is for others to decide: with a token, a stranger's certificate does no harm.
    assert_eq!(
        handshake(&tls, &server, Some(strangers.issue("jane", &[])))
            .await
            .unwrap()
            .1,
        1
    );
    // But not without its key.
    let (certificate, _) = clients.issue("jane", &[]);
    let (_, key) = clients.issue("joe", &[]);
    handshake(&tls, &server, Some((certificate, key)))
        .await
        .unwrap_err();
}

#[tokio::test]
async fn a_long_chain_of_client_certificates_is_refused() {
    let (server, clients) = (Pki::new(), Pki::new());
    let dir = tempfile::tempdir().unwrap();
    let (tls, _) = asking_for_certificates(&dir, &server, &clients).await;
    let names: Vec<_> = (0..800).map(|n| format!("name-{n}.example.com")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for (names, is_accepted) in [(&names[..100], true), (&names[..], false)] {
        let identity = Some(clients.issue("jane", names));
        let shaken = handshake(&tls, &server, identity).await;
        assert_eq!(shaken.is_ok(), is_accepted, "{}", names.len());
    }
}

#[tokio::test]
async fn certificates_of_version_1_end_no_handshake_unless_the_key_is_anothers() {
    let (server, clients) = (Pki::new(), Pki::new());
    let dir = tempfile::tempdir().unwrap();
    let (tls, _) = asking_for_certificates(&dir, &server, &clients).await;
    let (certificate, key) = clients.issue_version_1("jane");
    let (_, others) = clients.issue_version_1("jane");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for version in rustls::ALL_VERSIONS {
        for (key, is_accepted) in [(&key, true), (&others, false)] {
            let accept = async {
                let (tcp, _) = listener.accept().await.unwrap();
                tls.acceptor().accept(tcp).await
            };
            let identity = (certificate.clone(), key.clone());
            let roots = server.roots();
            let connect = connect_by(version, address, &roots, identity);
            let (accepted, _) = soon(async { tokio::join!(accept, connect) }).await;
            assert_eq!(accepted.is_ok(), is_accepted, "{version:?}: {accepted:?}");
        }
    }
}

/// Returns how the second handshake of one client went.
async fn second_handshake(tls: &ServerTls, pki: &Pki) -> HandshakeKind {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(pki.roots())
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connect = async || {
        let address = listener.local_addr().unwrap();
        let acceptor = tls.acceptor();
        let serve = async {
            let (tcp, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(tcp).await.unwrap();
            stream.write_all(b"!").await.unwrap();
            stream
        };
        let read = async {
            let tcp = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let mut stream = connector.connect(name, tcp).await.unwrap();
            // What the server says of sessions comes before this.
            stream.read_exact(&mut [0]).await.unwrap();
            stream.get_ref().1.handshake_kind().unwrap()
        };
        soon(async { tokio::join!(serve, read) }).await.1
    };
    assert_eq!(connect().await, HandshakeKind::Full);
    connect().await
}

#[tokio::test]
async fn no_certificate_outlives_its_connection_in_a_session() {
    let (server, clients) = (Pki::new(), Pki::new());
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = put(&dir, server.issue("server", &["localhost"]));
    let client_ca = dir.path().join("client-ca.crt");
    std::fs::write(&client_ca, &clients.ca_pem).unwrap();
    for (client_cas, kind) in [
        (vec![], HandshakeKind::Resumed),
        (vec![client_ca], HandshakeKind::Full),
    ] {
        let options = TlsOptions {
            cert: Some(cert.clone()),
            key: Some(key.clone()),
            client_cas,
            ..tls_options(&dir)
        };
        let tls = ServerTls::load(options).await.unwrap();
        assert_eq!(second_handshake(&tls, &server).await, kind);
    }
}

#[tokio::test]
async fn errors_name_file_and_flag() {
    let dir = tempfile::tempdir().unwrap();
    let half = TlsOptions {
        cert: Some(dir.path().join("my.crt")),
        ..tls_options(&dir)
    };
    let error = ServerTls::load(half.clone()).await.unwrap_err().to_string();
    assert!(error.contains("--tls-key"), "{error}");
    let missing = TlsOptions {
        key: Some(dir.path().join("my.key")),
        ..half
    };
    let error = ServerTls::load(missing).await.unwrap_err().to_string();
    assert!(error.contains("my.crt"), "{error}");
}

#[test]
fn errors_show_no_part_of_a_key() {
    for pem in [
        "-----BEGIN PRIVATE KEY-----c2VjcmV0",
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n",
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0!\n-----END PRIVATE KEY-----\n",
    ] {
        let reason = pem_reason(&PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap_err());
        let shows = ["c2Vj", "99, 50", "PRIVATE KEY-----"];
        assert!(!shows.iter().any(|part| reason.contains(part)), "{reason}");
    }
}

#[tokio::test]
async fn clients_of_an_older_version_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (min_version, is_served) in [(TlsMinVersion::Tls12, true), (TlsMinVersion::Tls13, false)] {
        let tls = ServerTls::load(TlsOptions {
            policy: TlsPolicy {
                min_version,
                ..TlsPolicy::default()
            },
            ..tls_options(&dir)
        });
        let tls = tls.await.unwrap();
        let ca = std::fs::read_to_string(tls.ca_file().unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let old = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(crate::test_support::roots(&ca))
            .with_no_client_auth();
        let (client, server) = tokio::io::duplex(1 << 16);
        let served = tokio::spawn(async move { tls.acceptor().accept(server).await.is_ok() });
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connected = tokio_rustls::TlsConnector::from(Arc::new(old))
            .connect(name, client)
            .await;
        assert_eq!(connected.is_ok(), is_served, "{min_version:?}");
        assert_eq!(served.await.unwrap(), is_served);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_files_are_read_is_not_the_last_look_at_them() {
    let looks = Arc::new(Mutex::new(0));
    look_regularly(&looks, |looks| async move {
        *looks.lock() += 1;
        assert!(*looks.lock() > 1, "a parser that panics");
    });
    tokio::time::sleep(3 * RELOAD_INTERVAL).await;
    assert!(*looks.lock() > 1);
}
