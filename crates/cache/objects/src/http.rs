//! Requests to a store over HTTP, with limits on the bytes and the time of replies. A store is not
//! trusted, so it may send replies without end.
//!
//! - **http-H1** No redirect is followed. A request has the credentials and the session token of
//!   its bucket, which another host must not get; and stores do not need redirects to the same
//!   host.
//! - **http-H2** A reply is read up to a limit that depends on the request: the requested range,
//!   the most bytes of an object ([`LenMax`]), a page of a list, an error. A longer reply is an
//!   error, and its connection is closed.
//! - **http-H3** A request ends within [`time_for`] its bytes, whatever the store sends.

use object_store::client::{
    ClientConfigKey as Key, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind,
    HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use std::fmt::Display;
use std::io;
use std::time::Duration;

/// The most bytes of a reply that is not an object: a page of a list has 1000 names of 1 KiB, with
/// at most six bytes for each of their bytes.
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// The most bytes of an error.
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// The time in which a store must answer, without the time for the bytes.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The least rate of transfers, in bytes per second.
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;

/// The most bytes of a requested object; an extension of the request.
#[derive(Clone, Copy, Debug)]
pub struct LenMax(pub u64);

/// Returns the time limit of a request that transfers this number of bytes.
pub fn time_for(bytes: u64) -> Duration {
    ANSWER_TIME + Duration::from_millis(bytes.saturating_mul(1000) / BYTES_PER_SECOND_MIN)
}

/// A connector that makes clients with these limits.
#[derive(Debug)]
pub struct Bounded;

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(client(options)?)))
    }
}

/// Makes a client with these options, which follows no redirect (http-H1). Fails for unsupported
/// options.
fn client(options: &ClientOptions) -> object_store::Result<reqwest::Client> {
    let text = |key: Key| options.get_config_value(&key);
    let is_set = |key: Key| -> object_store::Result<bool> {
        match text(key).unwrap_or_default().to_ascii_lowercase().as_str() {
            "1" | "true" | "on" | "yes" | "y" => Ok(true),
            "" | "0" | "false" | "off" | "no" | "n" => Ok(false),
            other => Err(wrong(format!("{}: {other} is neither true nor false", key.as_ref()))),
        }
    };
    let time = |key: Key| -> object_store::Result<Option<Duration>> {
        let parse = |text: String| humantime::parse_duration(&text);
        text(key).map(parse).transpose().map_err(|err| wrong(format!("{}: {err}", key.as_ref())))
    };
    for key in [
        Key::Http2KeepAliveInterval,
        Key::Http2KeepAliveTimeout,
        Key::Http2MaxFrameSize,
        Key::PoolMaxIdlePerHost,
    ] {
        if text(key).is_some() {
            return Err(wrong(format!("the option {} is not supported", key.as_ref())));
        }
    }
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .https_only(!is_set(Key::AllowHttp)?)
        .danger_accept_invalid_certs(is_set(Key::AllowInvalidCertificates)?)
        .user_agent(text(Key::UserAgent).unwrap_or_else(|| "keepstone".to_owned()));
    if let Some(url) = text(Key::ProxyUrl) {
        let mut proxy = reqwest::Proxy::all(url).map_err(wrong)?;
        if let Some(excluded) = text(Key::ProxyExcludes) {
            proxy = proxy.no_proxy(reqwest::NoProxy::from_string(&excluded));
        }
        builder = builder.proxy(proxy);
    }
    if let Some(pem) = text(Key::ProxyCaCertificate) {
        let certificate = reqwest::Certificate::from_pem(pem.as_bytes()).map_err(wrong)?;
        builder = builder.tls_certs_merge([certificate]);
    }
    if is_set(Key::NoSystemCertificates)? {
        builder = builder.tls_certs_only([]);
    }
    if is_set(Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    } else if is_set(Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if let Some(time) = time(Key::Timeout)? {
        builder = builder.timeout(time);
    }
    if let Some(time) = time(Key::ConnectTimeout)? {
        builder = builder.connect_timeout(time);
    }
    if let Some(time) = time(Key::ReadTimeout)? {
        builder = builder.read_timeout(time);
    }
    if let Some(time) = time(Key::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(time);
    }
    builder.build().map_err(wrong)
}

fn wrong(what: impl Display) -> object_store::Error {
    object_store::Error::Generic { store: "HTTP client", source: what.to_string().into() }
}

/// A client that reads replies completely, up to their limit.
#[derive(Debug)]
struct Service(reqwest::Client);

#[async_trait::async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let len_max = len_max(&request);
        let time = time_for(len_max.saturating_add(request.body().content_length() as u64));
        let exchange = async {
            let response = self.0.call(request).await?;
            let is_success = response.status().is_success();
            let len_max = if is_success { len_max } else { ERROR_BYTES_MAX };
            let (parts, body) = response.into_parts();
            Ok(HttpResponse::from_parts(parts, read(body, len_max).await?))
        };
        tokio::time::timeout(time, exchange).await.unwrap_or_else(|_| {
            let what = format!("no whole answer within {} s", time.as_secs());
            let late = io::Error::new(io::ErrorKind::TimedOut, what);
            // Of a kind that is not repeated, as the time for the request is over (http-H3).
            Err(HttpError::new(HttpErrorKind::Unknown, late))
        })
    }
}

/// Returns the most bytes of the reply to a request (http-H2).
fn len_max(request: &HttpRequest) -> u64 {
    let range = request.headers().get("range").and_then(|range| range.to_str().ok());
    if let Some(range) = range {
        return range_len(range).unwrap_or(0);
    }
    request.extensions().get().map_or(PAGE_BYTES_MAX, |LenMax(len)| *len)
}

/// Returns the number of bytes of a range such as `bytes=0-99`.
fn range_len(range: &str) -> Option<u64> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
}

/// Reads a body of at most `len_max` bytes. Dropping the body before its end closes the connection.
async fn read(body: HttpResponseBody, len_max: u64) -> Result<HttpResponseBody, HttpError> {
    use futures_util::TryStreamExt as _;
    // The announced length may be wrong.
    let announced = http_body::Body::size_hint(&body).lower();
    let mut bytes = Vec::with_capacity(announced.min(len_max).min(1 << 20) as usize);
    let mut stream = body.bytes_stream();
    while let Some(piece) = stream.try_next().await? {
        if piece.len() as u64 > len_max - bytes.len() as u64 {
            let what = format!("a reply of more than {len_max} bytes");
            return Err(HttpError::new(HttpErrorKind::Unknown, io::Error::other(what)));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(HttpResponseBody::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_reply_follows_from_its_range() {
        assert_eq!(range_len("bytes=0-0"), Some(1));
        assert_eq!(range_len("bytes=100-199"), Some(100));
        for range in ["bytes=5-4", "bytes=0-", "bytes=-5", "0-1", "bytes=0-18446744073709551615"] {
            assert_eq!(range_len(range), None, "{range}");
        }
    }
}
