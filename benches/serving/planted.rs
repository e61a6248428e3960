//! Checks the benchmark with a server that has planted faults. Each fault must show in its figure.
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, header};

use crate::form::{Form, Reader};
use crate::limit::{LOG, LOG_BYTES, Planted, WAIT};
use crate::memory::SlowReaders;
use crate::paced::open_loop;
use crate::profile::{Function, Line, Location, Profile, Sample};
use crate::servers::{Running, limit, set_answer};

/// A list whose memory is measured.
const LIST: usize = 4 << 20;
const READERS: usize = 10;
/// Rate of the requests whose time is measured.
const RATE: f64 = 200.0;
const LENGTH: Duration = Duration::from_millis(500);

pub(crate) async fn run() -> anyhow::Result<()> {
    reader()?;
    profile()?;
    let folder = tempfile::tempdir()?;
    let server = limit("planted", folder.path(), "token", None)?;
    memory(&server).await?;
    times(&server).await?;
    form(&server).await?;
    let log = server
        .endpoint
        .connect(false)
        .await?
        .swallow(&format!("/a/pods/b{LOG}"))
        .await?;
    ensure!(log == LOG_BYTES, "{log} bytes of a log of {LOG_BYTES}");
    Ok(())
}

/// Checks that the CPU of a function is found with what it calls, and without anything else.
fn profile() -> anyhow::Result<()> {
    let named = |(id, name)| Function { id, name };
    let location = |id, functions: &[u64]| Location {
        id,
        lines: functions
            .iter()
            .map(|&function| Line { function })
            .collect(),
    };
    let sample = |locations: &[u64], nanos| Sample {
        locations: locations.to_vec(),
        values: vec![1, nanos],
    };
    let mut profile = Profile {
        samples: vec![sample(&[2, 1], 5), sample(&[1], 7), sample(&[3], 100)],
        // The compiler has put the watch's function and another one into one place.
        locations: vec![
            location(1, &[20, 10]),
            location(2, &[20]),
            location(3, &[20]),
        ],
        functions: [(10, 1), (20, 2)].map(named).to_vec(),
        strings: ["", "watch.Serve", "encode"].map(str::to_owned).to_vec(),
    };
    let nanos = profile.spent_on(&["watch."])?.as_nanos();
    ensure!(nanos == 12, "{nanos} ns of a watch that took 12");
    ensure!(profile.spent_on(&["nobody"])?.is_zero(), "CPU of nobody");
    profile.samples[2].values.pop();
    ensure!(
        profile.spent_on(&["watch."]).is_err(),
        "a count was read as a time"
    );
    Ok(())
}

/// Checks that content is found in every coding, wherever it is cut.
fn reader() -> anyhow::Result<()> {
    let mut text = Vec::new();
    for number in 0..7 {
        text.extend(
            format!(r#"{{"annotations":{{"bench/stamp":"{number:016}"}},"f:bench/stamp":{{}}}}"#)
                .into_bytes(),
        );
        text.extend(b"\x0a\x1f\x0a\x0bbench/stamp\x12\x100000000000000000");
    }
    let end = br#"{"k8s.io/initial-events-end":"true"}"#;
    let mut whole = text.clone();
    whole.extend(end);
    let members = [gzip_member(&text)?, gzip_member(end)?].concat();
    for (form, sent) in [(Form::Json, &whole), (Form::JsonGzip, &members)] {
        for size in [1, 7, 64, 65, 1000] {
            let mut reader = Reader::counting(form);
            for (number, piece) in sent.chunks(size).enumerate() {
                let early = reader.ended() && (number + 1) * size + end.len() + 64 < sent.len();
                ensure!(!early, "the end was seen before it came");
                reader.push(piece)?;
            }
            ensure!(
                reader.ended(),
                "{} in pieces of {size}: the end was not seen",
                form.name()
            );
            ensure!(
                reader.pods() == 14,
                "{} in pieces of {size}: {} pods",
                form.name(),
                reader.pods()
            );
        }
    }
    let mut endless = Reader::new(Form::Json);
    endless.push(&text)?;
    ensure!(!endless.ended(), "an end was seen that never came");
    Ok(())
}

fn gzip_member(data: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(1));
    std::io::Write::write_all(&mut encoder, data)?;
    Ok(encoder.finish()?)
}

/// Checks that a server grows by the list for each reader only if it copies the list.
async fn memory(server: &Running) -> anyhow::Result<()> {
    let list = Bytes::from(vec![b'a'; LIST]);
    let mut readers = SlowReaders {
        pid: server.pid(),
        endpoint: server.endpoint.clone(),
        http1: false,
        readers: READERS,
        pause: Duration::from_millis(5),
        length: LIST,
        lowest: None,
    };
    let mut shares = Vec::new();
    // The second copy must show although the allocator has kept memory of the first.
    for planted in [None, Some(Planted::Copy), Some(Planted::Copy)] {
        set_answer(&server.endpoint, &HeaderMap::new(), list.clone(), planted).await?;
        shares.push(readers.growth().await? * 100.0);
    }
    println!(
        "slow lists without a copy of their own are read as {:.0} % of one each, \
         with one as {:.0} %",
        shares[0], shares[1]
    );
    ensure!(
        shares[0] < 15.0,
        "slow readers' memory is seen where there is none"
    );
    ensure!(
        // The allocator may take more than what is copied.
        shares[1..]
            .iter()
            .all(|share| (70.0..150.0).contains(share)),
        "slow readers' memory is not seen: {shares:?}"
    );
    Ok(())
}

/// A wait shows in every time, and a queue in that of those who stand in it.
async fn times(server: &Running) -> anyhow::Result<()> {
    let mut connections = Vec::new();
    for _ in 0..4 {
        connections.push(server.endpoint.connect(false).await?);
    }
    let wait = WAIT.as_secs_f64() * 1e3;
    for planted in [Planted::Wait, Planted::Queue] {
        set_answer(
            &server.endpoint,
            &HeaderMap::new(),
            Bytes::from_static(b"{}"),
            Some(planted),
        )
        .await?;
        let waits = open_loop(&connections, RATE, LENGTH, |_| "/".to_owned()).await?;
        let (mean, p99) = (waits.mean(), waits.percentile(99));
        println!(
            "a planted {} of {wait} ms is read as {mean:.0} ms (p99 {p99:.0} ms)",
            planted.name()
        );
        let wanted = (RATE * LENGTH.as_secs_f64()).ceil() as usize;
        ensure!(
            waits.len() == wanted,
            "{} requests of {wanted}",
            waits.len()
        );
        ensure!(
            mean >= wait && waits.percentile(50) >= wait,
            "a planted wait is not seen"
        );
        if planted == Planted::Queue {
            // The last waits for all before it, of which few were answered while the others came.
            let last = wait * waits.len() as f64 - LENGTH.as_secs_f64() * 1e3;
            ensure!(
                waits.percentile(100) >= last,
                "who waits in a queue is not seen to"
            );
            ensure!(!waits.kept_up, "a server that does not keep up is said to");
        }
    }
    Ok(())
}

/// An answer in another form than was asked for is no answer.
async fn form(server: &Running) -> anyhow::Result<()> {
    let mut head = HeaderMap::from_iter([(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )]);
    let body = Bytes::from_static(br#"{"k8s.io/initial-events-end":"true"}"#);
    let forms = [
        Form::Json,
        Form::JsonGzip,
        Form::Protobuf,
        Form::ProtobufGzip,
    ];
    for coding in [None, Some(HeaderValue::from_static("gzip"))] {
        let sent = if coding.is_some() {
            Form::JsonGzip
        } else {
            Form::Json
        };
        coding.map(|coding| head.insert(header::CONTENT_ENCODING, coding));
        set_answer(&server.endpoint, &head, body.clone(), None).await?;
        for form in forms {
            let answer = server
                .endpoint
                .connect(false)
                .await?
                .asking(form)
                .get("/")
                .await?;
            ensure!(
                form.is_of(answer.headers()) == (form == sent),
                "{} for {}",
                sent.name(),
                form.name()
            );
        }
    }
    Ok(())
}
