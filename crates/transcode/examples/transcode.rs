//! Prints the JSON of objects in protobuf, for `tests/real/internal/transcode`.
//!
//! Both directions are frames, each with its length before it in four bytes, big endian. Of each
//! object come its apiVersion, kind and minor release with spaces between them, and its message. Back
//! goes one byte, 1 if the object is explained, and its JSON, else 0 and the reason.
use std::error::Error;
use std::io::{self, BufReader, BufWriter, Read, Write};

use watershed_transcode::{Heading, Transcoder};

fn main() -> Result<(), Box<dyn Error>> {
    let mut input = BufReader::new(io::stdin().lock());
    let mut output = BufWriter::new(io::stdout().lock());
    let mut answer = Vec::new();
    while let Some(name) = read_frame(&mut input)? {
        let message = read_frame(&mut input)?.ok_or("a type without an object")?;
        answer.clear();
        answer.push(1);
        if let Err(reason) = print(std::str::from_utf8(&name)?, &message, &mut answer) {
            answer.clear();
            answer.push(0);
            answer.extend_from_slice(reason.to_string().as_bytes());
        }
        output.write_all(&u32::try_from(answer.len())?.to_be_bytes())?;
        output.write_all(&answer)?;
    }
    Ok(output.flush()?)
}

fn print(name: &str, message: &[u8], out: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = name.split(' ').collect();
    let [api_version, kind, release] = words[..] else {
        return Err("not apiVersion, kind and release".into());
    };
    let transcoder = Transcoder::for_type(api_version, kind)
        .ok_or("a type without a table")?
        .for_release(release.parse()?);
    Ok(transcoder.object_json(message, Heading::TypeMeta, out)?)
}

/// Reads the next frame; none at the end of the input.
fn read_frame(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if input.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut length[1..])?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    input.read_exact(&mut frame)?;
    Ok(Some(frame))
}
