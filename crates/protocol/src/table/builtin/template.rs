//! The pods that workloads make.
use std::collections::BTreeMap;

use serde::Deserialize;

use crate::table::cells::Cells;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodTemplate {
    pub(super) spec: TemplateSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TemplateSpec {
    containers: Option<Vec<TemplateContainer>>,
    pub(super) node_selector: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateContainer {
    name: String,
    image: String,
}

impl PodTemplate {
    /// Makes the cells of the containers' names and images.
    pub(super) fn print(&self, cells: &mut Cells) {
        let containers = || self.spec.containers.iter().flatten();
        let names: Vec<_> = containers().map(|container| &*container.name).collect();
        let images: Vec<_> = containers().map(|container| &*container.image).collect();
        cells.text(&names.join(","));
        cells.text(&images.join(","));
    }
}
