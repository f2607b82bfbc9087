//! Replies of a store over HTTP, byte by byte, to each kind of request.

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig,
    UpdateVersion,
};
use objects::Bounded;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::store::RUNTIME;

/// A client that waits longer than this for the rest of a request or a connection does not get it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The one server, with the reply that it gives to all requests.
static SERVER: LazyLock<ReplyServer> = LazyLock::new(|| {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A connection that breaks is the client's matter.
            let _ = answer(client);
        }
    });
    ReplyServer { address, reply: Mutex::default() }
});

struct ReplyServer {
    address: SocketAddr,
    reply: Mutex<Vec<u8>>,
}

/// Reads a request's head, sends the reply, and waits until the client closes.
fn answer(mut client: TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (mut head, mut buf) = (Vec::new(), [0; 4096]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut buf)? {
            0 => return Ok(()),
            len => head.extend_from_slice(&buf[..len]),
        }
    }
    let reply = SERVER.reply.lock().unwrap_or_else(PoisonError::into_inner).clone();
    client.write_all(&reply)?;
    client.shutdown(Shutdown::Write)?;
    while client.read(&mut buf)? > 0 {}
    Ok(())
}

/// A client of the server that gives up at the first failure.
static STORE: LazyLock<AmazonS3> = LazyLock::new(|| {
    // It fails if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    AmazonS3Builder::new()
        .with_bucket_name("bucket")
        .with_region("region")
        .with_access_key_id("key")
        .with_secret_access_key("secret")
        .with_endpoint(format!("http://{}", SERVER.address))
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(Bounded)
        .build()
        .expect("the options are sound")
});

/// Sends the bytes as the reply to each of: a read, a read of a range, a `HEAD`, a listing, and two
/// conditional writes.
pub fn http(bytes: &[u8]) {
    *SERVER.reply.lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
    let path = Path::from("tree/manifest");
    RUNTIME.block_on(async {
        if let Ok(found) = STORE.get(&path).await {
            let _ = found.bytes().await;
        }
        if let Ok(range) = STORE.get_range(&path, 2..7).await {
            assert!(range.len() <= 5, "no more than was asked for");
        }
        let _ = STORE.head(&path).await;
        let _ = STORE.list_with_delimiter(Some(&path)).await;
        let _ = STORE.put_opts(&path, "new".into(), PutOptions::from(PutMode::Create)).await;
        let version = UpdateVersion { e_tag: Some("tag".into()), version: None };
        let update = PutOptions::from(PutMode::Update(version));
        let _ = STORE.put_opts(&path, "next".into(), update).await;
    });
}

/// Returns replies: an object, a range, a listing, errors, a redirect, and chunks.
pub fn seeds() -> Vec<Vec<u8>> {
    let reply = |status: &str, headers: &str, body: &str| {
        let modified = "Last-Modified: Fri, 27 Nov 2026 20:00:00 GMT";
        let len = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nETag: \"tag\"\r\n{modified}\r\n{headers}\r\n{body}"
        )
    };
    let list = "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount>\
                <IsTruncated>false</IsTruncated><Contents><Key>tree/manifest/1</Key>\
                <LastModified>2026-11-27T20:00:00.000Z</LastModified><ETag>&quot;tag&quot;</ETag><Size>5</Size>\
                </Contents><CommonPrefixes><Prefix>tree/manifest/data/</Prefix></CommonPrefixes></ListBucketResult>";
    let error =
        "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>gone</Message></Error>";
    [
        reply("200 OK", "", "hello"),
        reply("206 Partial Content", "Content-Range: bytes 2-6/10\r\n", "hello"),
        reply("200 OK", "Content-Type: application/xml\r\n", list),
        reply("404 Not Found", "", error),
        reply("412 Precondition Failed", "", error),
        reply("301 Moved Permanently", "Location: http://127.0.0.1:1/\r\n", ""),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}
