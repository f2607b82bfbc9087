//! Where a tree is, as users write it: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`.

use crate::Error;
use crate::http::Bounded;
use crate::store::Store;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Whether a user's word for a place means one in a store.
pub fn is_url(place: &str) -> bool {
    place.contains("://")
}

/// A prefix in a store.
pub struct Location {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl Location {
    /// A prefix of a store that is there.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self { store, prefix: Path::from(prefix) }
    }

    /// The place of a URL. Options are those of the crate `object_store`, by their names there or as variables of the environment
    /// are called (`aws_region`, `AWS_REGION`); the environment gives what `options` do not.
    ///
    /// # Errors
    /// [`Error::Location`] for what is no URL of a store that has conditional puts, and for unknown options.
    pub fn parse(text: &str, options: &[(String, String)]) -> Result<Self, Error> {
        let wrong = |what: String| Error::Location(format!("{text}: {what}"));
        let url = Url::parse(text).map_err(|err| wrong(err.to_string()))?;
        let (scheme, path) =
            ObjectStoreScheme::parse(&url).map_err(|err| wrong(err.to_string()))?;
        // It fails where there is one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        /// Each builder has keys of a type of its own.
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

    /// What is there.
    pub(crate) fn open(self) -> Result<Store, Error> {
        Store::new(self.store, &self.prefix)
    }
}

/// A request that fails is repeated for so long: who waits for it is told in the end, and may try again.
fn retries() -> RetryConfig {
    RetryConfig { max_retries: 5, retry_timeout: Duration::from_secs(15), ..RetryConfig::default() }
}
