//! The proxy's own files, and what comes before TLS and HTTP.
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;

use watershed::fuzzing;

use crate::FuzzTarget;

/// Longest header of the PROXY protocol.
const MAX_HEADER: usize = 16 + 4096;

/// Length of what stands before the blocks of a checkpoint.
const CHECKPOINT_START: usize = 24;

/// Returns the files of a folder of the repository.
fn repository_files(folder: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(folder);
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Returns the error without names and numbers, so that it tells kinds of mistakes apart.
fn kind_of(error: &str, input: &[u8]) -> String {
    assert!(
        error.len() <= 1_000 + 20 * input.len(),
        "an error is too long: {error}"
    );
    let letters = error.chars().filter(char::is_ascii_lowercase);
    letters.take(40).collect()
}

/// Fuzzes the configuration file.
pub(crate) fn configurations() -> FuzzTarget {
    let mut corpus = repository_files("examples/config");
    corpus.push(b"consistentReads: stale\nmemoryLimit: 2Gi\nmaxStalenessSeconds: 7\n".to_vec());
    corpus.push(b"resources:\n  - {group: apps, resource: deployments, cache: never}\n".to_vec());
    corpus.push(b"scopes:\n  - {resource: pods, namespace: a, labelSelector: a=b}\n".to_vec());
    let words = &[
        "resources:\n",
        "  - ",
        "resource: pods\n",
        "group: ",
        "cache: ",
        "always",
        "metadata",
        "selectorScopes: true\n",
        "&a ",
        "*a",
        "<<: ",
        "!!str ",
        "? ",
        "- [",
        "{",
        "1e9",
        "~",
        "\"\\u0000\"",
        "|\n",
        "---\n",
        "labelSelector: ",
        "windowSeconds: 99999999999999999999\n",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let text = String::from_utf8_lossy(input);
        fuzzing::configuration(&text).map_err(|error| kind_of(&error, input))
    })
}

/// Fuzzes the audit policy.
pub(crate) fn audit_policies() -> FuzzTarget {
    let corpus = [
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
         - {level: None, users: [alice], verbs: [get]}\n- level: Metadata\n",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: RequestResponse\n  \
         resources: [{group: \"\", resources: [pods, pods/status], resourceNames: [b]}]\n\
         - {level: Metadata, nonResourceURLs: [\"/healthz*\"]}\n",
    ]
    .map(|text| text.as_bytes().to_vec());
    let words = &[
        "- level: ",
        "None",
        "Metadata",
        "resources:\n",
        "pods/*",
        "*/status",
        "*",
        "&a ",
        "*a",
        "namespaces: [a]\n",
        "userGroups: [",
        "]",
        "nonResourceURLs: [\"/a*\"]\n",
        "~",
        "[[",
        "{",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let text = String::from_utf8_lossy(input);
        fuzzing::audit_policy(&text).map_err(|error| kind_of(&error, input))
    })
}

/// Fuzzes client certificates in DER, and files of certificates in PEM.
pub(crate) fn certificates() -> FuzzTarget {
    let corpus = [
        include_bytes!("certificates/client.der").to_vec(),
        include_bytes!("certificates/authority.der").to_vec(),
        include_bytes!("certificates/client.pem").to_vec(),
    ];
    let words = &[
        "\x30\u{7f}",
        "\x06\x03\x55\x04\x03",
        "\x06\x03\x55\x04\x0a",
        "\x0c\x05alice",
        "\x31\x0d",
        "\x1e\x04",
        "\x02\x01",
        "-----BEGIN CERTIFICATE-----\n",
        "-----END CERTIFICATE-----\n",
        "MII",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let user = fuzzing::certificate(input).map_err(|error| kind_of(&error, input));
        if let Ok(Some(user)) = &user {
            assert!(!user.is_empty(), "nobody has no name");
        }
        let lengths = fuzzing::certificate_file(input).map_err(|error| kind_of(&error, input));
        if let Ok(lengths) = &lengths {
            // Base64 has more characters than bytes.
            assert!(lengths.iter().sum::<usize>() <= input.len());
        }
        (user, lengths)
    })
}

/// Fuzzes the header of the PROXY protocol.
pub(crate) fn proxy_headers() -> FuzzTarget {
    let binary = |rest: &[u8]| [b"\r\n\r\n\0\r\nQUIT\n", rest].concat();
    let corpus = [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 4000 443\r\nrest".to_vec(),
        b"PROXY TCP6 2001:db8::1 2001:db8::2 4000 443\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        binary(b"\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\x0f\xa0\x01\xbbrest"),
        binary(&[&b"\x21\x21\0\x24"[..], &[7; 36]].concat()),
        binary(b"\x20\0\0\0"),
    ];
    let words = &[
        "PROXY ",
        "TCP4 ",
        "TCP6 ",
        "UNKNOWN",
        "\r\n",
        "::",
        "255.255.255.255",
        " 65536",
        " 0",
        "\x21\x11",
        "\x20",
        "\0\x0c",
        "\x7f\x7f",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let (address, left) = fuzzing::proxy_header(input);
        let used = input.len() - left;
        assert!(used <= MAX_HEADER, "{used} bytes are read");
        if address.is_ok() {
            // What follows the header belongs to TLS.
            let (again, left) = fuzzing::proxy_header(&input[..used]);
            assert_eq!((&again, left), (&address, 0));
        }
        (address.map_err(|error| kind_of(&error, input)), used)
    })
}

/// Returns what is read of an input that comes as a whole. In pieces of any size it is the same.
fn in_any_pieces<O: Debug + PartialEq>(input: &[u8], read: impl Fn(&[u8], usize) -> O) -> O {
    let whole = read(input, input.len());
    for piece in [1, 2, 7] {
        assert_eq!(read(input, piece), whole);
    }
    whole
}

/// Fuzzes requests over HTTP/1, as far as they are followed for a `#` in a target.
pub(crate) fn request_lines() -> FuzzTarget {
    let corpus = [
        b"GET /api HTTP/1.1\r\nHost: a\r\n\r\nGET /#x HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\na # b\r\nGET /#x HTTP/1.0\n\n".to_vec(),
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\na # b\r\n0\r\nT: #\r\n\r\nGET /#"
            .to_vec(),
    ];
    let words = &[
        "GET ",
        "/#",
        " HTTP/1.1\r\n",
        "\r\n",
        "\n",
        "Content-Length:",
        "Transfer-Encoding:",
        " chunked\r\n",
        "0\r\n",
        "ffffffffffffffff",
        "18446744073709551615",
        " ",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let whole = in_any_pieces(input, fuzzing::request_lines);
        let refused = whole.iter().skip_while(|fault| fault.is_none());
        assert!(refused.clone().all(Option::is_some), "a fault lasts");
        whole
    })
}

/// Fuzzes frames of HTTP/2, as far as they are followed for a `#` in a path.
pub(crate) fn request_frames() -> FuzzTarget {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let with = |frames: &[u8]| [&preface[..], frames].concat();
    let corpus = [
        with(b"\0\0\x05\x01\x04\0\0\0\x01\x04\x03/#x\0\0\x02\0\0\0\0\0\x01##"),
        with(b"\0\0\x0b\x01\x0c\0\0\0\x01\x02\0\x05:path\x02/###"),
        with(b"\0\0\x0a\x01\x24\0\0\0\x01#####\x44\x83\x63\xff\xa7"),
        with(b"\0\0\x02\x01\0\0\0\0\x01\x05\x7f\0\0\x03\x09\x04\0\0\0\x01\0/#"),
        with(b"\0\0\x08\x01\x04\0\0\0\x01\x44\x02/a\x7e\x02/#"),
        with(b"\0\0\x08\x05\x04\0\0\0\x01\0\0\0\x02\x44\x02/#"),
        with(b"\0\0\x09\x01\x24\0\0\0\x01\0\0\0\x01\x10\x04\x02/#"),
        with(b"\0\0\x06\x01\x04\0\0\0\x01\x40\0\x01x\x20\x82"),
    ];
    let words = &[
        "\0\0\x05\x01\x04\0\0\0\x01",
        "\0\0\x05\x09\x04\0\0\0\x01",
        "\x04\x02/#",
        "\0\x05:path",
        "\x7f",
        "\x40",
        "#",
        "\0",
        "\x3f",
    ];
    FuzzTarget::new(corpus, words, |input| {
        let whole = in_any_pieces(input, fuzzing::request_frames);
        let changes = input.iter().zip(&whole).filter(|(one, next)| one != next);
        for (one, next) in changes.clone() {
            let is_bit = (one ^ next).is_power_of_two() && next > one;
            // A promise, a name without a letter, and the last bit of a stream that depends on itself.
            let is_alike_for_h2 = matches!((one, next), (5, 9) | (0 | 0x80, 1)) || one ^ next == 1;
            assert!((*one, *next) == (b'#', b'>') || is_bit || is_alike_for_h2);
        }
        assert_eq!(fuzzing::request_frames(&whole, whole.len()), whole);
        changes.count()
    })
}

/// Fuzzes checkpoint files whose checksum is right: as they are, and with right lengths.
pub(crate) fn checkpoints() -> FuzzTarget {
    let files = fuzzing::checkpoint_examples();
    for file in &files {
        assert_eq!(fuzzing::checkpoint(file), Ok((7, 1)));
        assert_eq!(&framed(&unframed(file)), file);
    }
    let blocks: Vec<_> = files.iter().map(|file| unframed(file)).collect();
    let corpus = [files, blocks].concat();
    let words = &[
        "watershed checkpoint  2\n",
        "\u{7f}\0\0\0",
        "\0\0\0\0",
        "\0",
        "\"objects\":9",
        "\"version\":0",
        "\"format\":{",
        "null",
        "\"metadata\":{",
        "\"name\":\"",
        "}",
        "\n",
        "[",
        "1e99",
    ];
    FuzzTarget::new(corpus, words, |input| {
        [input.to_vec(), framed(input)].map(|file| {
            let read = fuzzing::checkpoint(&file);
            if let Ok((_, objects)) = read {
                assert!(objects <= file.len() as u64, "an object takes bytes");
            }
            read.map_err(|error| kind_of(&error, input))
        })
    })
}

/// Returns the blocks of a file, with a zero between them.
fn unframed(file: &[u8]) -> Vec<u8> {
    let mut rest = &file[CHECKPOINT_START..];
    let mut blocks = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let (block, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        blocks.push(block);
        rest = after;
    }
    blocks.join(&0)
}

/// Returns a file of the blocks between zeros.
fn framed(blocks: &[u8]) -> Vec<u8> {
    let mut file = b"watershed checkpoint  2\n".to_vec();
    for block in blocks.split(|byte| *byte == 0) {
        file.extend((block.len() as u32).to_le_bytes());
        file.extend(block);
    }
    file
}
