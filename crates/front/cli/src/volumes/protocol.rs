//! The requests of Docker's volume plugin protocol, as JSON.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::store::{VolumeInfo, VolumeStore};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Named {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Create {
    name: String,
    /// null without options.
    #[serde(default)]
    opts: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Use {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "ID")]
    id: String,
}

/// Answers a request; `None` if there is no such request.
pub fn answer(path: &str, body: &[u8], store: &VolumeStore) -> Result<Option<Value>> {
    let done = || json!({ "Err": "" });
    Ok(Some(match path {
        "/Plugin.Activate" => json!({ "Implements": ["VolumeDriver"] }),
        "/VolumeDriver.Capabilities" => json!({ "Capabilities": { "Scope": "local" } }),
        "/VolumeDriver.Create" => {
            let Create { name, opts } = parse(body)?;
            store.create(&name, &opts.unwrap_or_default())?;
            done()
        }
        "/VolumeDriver.Remove" => {
            store.remove(&parse::<Named>(body)?.name)?;
            done()
        }
        "/VolumeDriver.Mount" => {
            let Use { name, id } = parse(body)?;
            json!({ "Mountpoint": store.mount(&name, &id)?, "Err": "" })
        }
        "/VolumeDriver.Unmount" => {
            let Use { name, id } = parse(body)?;
            store.unmount(&name, &id)?;
            done()
        }
        "/VolumeDriver.Path" => {
            let found = store.get(&parse::<Named>(body)?.name)?;
            json!({ "Mountpoint": mountpoint(&found), "Err": "" })
        }
        "/VolumeDriver.Get" => {
            let found = store.get(&parse::<Named>(body)?.name)?;
            json!({ "Volume": volume(&found), "Err": "" })
        }
        "/VolumeDriver.List" => {
            let volumes: Vec<Value> = store.list()?.iter().map(volume).collect();
            json!({ "Volumes": volumes, "Err": "" })
        }
        _ => return Ok(None),
    }))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).context("the request is not the JSON of Docker's protocol")
}

/// Returns the mountpoint; empty if the volume is not mounted.
fn mountpoint(info: &VolumeInfo) -> String {
    info.mounted.as_ref().map_or_else(String::new, |dir| dir.display().to_string())
}

fn volume(info: &VolumeInfo) -> Value {
    let options = &info.options;
    json!({
        "Name": info.name,
        "Mountpoint": mountpoint(info),
        "Status": {
            "size": options.size,
            "layout": options.layout,
            "save": options.save,
            "users": info.users,
        },
    })
}
