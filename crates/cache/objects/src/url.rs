//! The location of a tree as a URL: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`.

use crate::Error;
use crate::http::Bounded;
use crate::store::RemoteStore;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Whether a user's argument is a URL, and not a path.
pub fn is_url(place: &str) -> bool {
    place.contains("://")
}

/// A prefix in a store.
pub struct Location {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl Location {
    /// Makes a location from an existing store.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self { store, prefix: Path::from(prefix) }
    }

    /// Parses a URL. Options are those of the crate `object_store`, with its names or the names of
    /// environment variables (`aws_region`, `AWS_REGION`). Options that are missing are taken from
    /// the environment.
    ///
    /// # Errors
    /// [`Error::Location`] if the text is not a URL of a store with conditional puts, or an option
    /// is unknown.
    pub fn parse(text: &str, options: &[(String, String)]) -> Result<Self, Error> {
        let wrong = |what: String| Error::Location(format!("{text}: {what}"));
        let url = Url::parse(text).map_err(|err| wrong(err.to_string()))?;
        let (scheme, path) =
            ObjectStoreScheme::parse(&url).map_err(|err| wrong(err.to_string()))?;
        // It fails if a provider is installed already, which suffices.
        let _ = rustls::crypto::ring::default_provider().install_default();
        /// The builders differ in the types of their keys.
        macro_rules! build {
            ($builder:ty) => {{
                let mut builder = <$builder>::from_env()
                    .with_url(text)
                    .with_retry(retries())
                    .with_http_connector(Bounded);
                for (key, value) in options {
                    let known = key.to_ascii_lowercase().parse();
                    let known = known.map_err(|_| wrong(format!("there is no option {key}")))?;
                    builder = builder.with_config(known, value);
                }
                Arc::new(builder.build().map_err(|err| wrong(err.to_string()))?)
                    as Arc<dyn ObjectStore>
            }};
        }
        let store = match scheme {
            ObjectStoreScheme::AmazonS3 => build!(AmazonS3Builder),
            ObjectStoreScheme::GoogleCloudStorage => build!(GoogleCloudStorageBuilder),
            ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder),
            ObjectStoreScheme::Local => {
                let what =
                    "a directory has no conditional puts; attach it by its path, without file://";
                return Err(wrong(what.to_owned()));
            }
            _ => return Err(wrong("not a store that is known: s3, gs or az".to_owned())),
        };
        Ok(Self { store, prefix: path })
    }

    /// Opens the store at the location.
    pub(crate) fn open(self) -> Result<RemoteStore, Error> {
        RemoteStore::new(self.store, &self.prefix)
    }
}

/// Returns the limits for repeating failed requests. After them, the caller gets the error and may
/// try again.
fn retries() -> RetryConfig {
    RetryConfig { max_retries: 5, retry_timeout: Duration::from_secs(15), ..RetryConfig::default() }
}
