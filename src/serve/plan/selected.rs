//! The selectors of a list or watch.
use watershed_protocol::{ListOptions, Selectors, ShardSelector};

use super::context::ReadContext;
use super::optional_parameters::ParameterUse;
use crate::access::ReviewSelectors;
use crate::serve::policy::CacheMode;
use crate::serve::policy::scope_choice::ScopeChoice;
use crate::serve::source::ForwardReason;
use crate::watcher::ViewFilter;

/// Requirements that the selectors of a read may have. Nobody writes more, and each takes a hundred
/// times as much memory as its shortest text.
const MAX_REQUIREMENTS: usize = 256;

/// Copies of a selector that an open watch keeps: one selects, the other is reviewed again.
const COPIES: u64 = 2;
/// Copies that a plan keeps: these, those of the whole selection, and of the scope that is asked for.
const PLANNED_COPIES: u64 = 4;
/// Bytes that a value of a selector takes in all copies, besides its text.
const VALUE_BYTES: u64 = 64;

/// The objects that a list or watch selects, and the scope that has them.
pub(super) struct Selected {
    pub(super) filter: ViewFilter,
    pub(super) selectors: Selectors,
    /// Bytes that the selectors take while an answer is sent.
    pub(super) bytes: u64,
    /// The selectors as authorization sees them.
    pub(super) reviewed: ReviewSelectors,
    pub(super) scope: ScopeChoice,
}

/// Returns the bytes that selectors take in a plan, if they take `sent` while an answer is sent.
pub(super) fn planned_bytes(sent: u64) -> u64 {
    sent / COPIES * PLANNED_COPIES
}

impl Selected {
    pub(super) fn new(
        context: &ReadContext<'_>,
        options: &ListOptions,
    ) -> Result<Self, ForwardReason> {
        let resource = context.resource;
        let selectors = parse_selectors(options)?;
        let namespace = context.namespace.map(str::to_owned);
        let scope = context
            .policy
            .scope_for(&resource.gvr, false, || {
                selectors.clone().within(namespace.clone())
            })
            .ok_or(ForwardReason::NotCovered)?;
        let filter = ViewFilter::new(namespace, &selectors, &resource.shape.fields)
            .map_err(|_| ForwardReason::Selector)?;
        let filter = match shard(context, options)? {
            Some(shard) => filter.within(shard),
            None => filter,
        };
        let selected = Self {
            filter,
            reviewed: ReviewSelectors::new(&selectors.labels, &selectors.fields),
            selectors,
            bytes: retained_bytes(options),
            scope,
        };
        if context.mode == CacheMode::Metadata && selected.reads_beyond_metadata(context) {
            return Err(ForwardReason::Policy);
        }
        Ok(selected)
    }

    fn reads_beyond_metadata(&self, context: &ReadContext<'_>) -> bool {
        let fields = self.selectors.fields.requirements();
        let known = &context.resource.shape.fields;
        fields
            .iter()
            .any(|field| !known.is_metadata_label(&field.field))
    }

    /// Returns `true` if a field selector requires one value of `field`.
    pub(super) fn requires(&self, field: &str) -> bool {
        self.selectors.fields.required_value(field).is_some()
    }
}

/// Parses the selectors of a list or watch. Leaves those of very many requirements to upstream.
pub(super) fn parse_selectors(options: &ListOptions) -> Result<Selectors, ForwardReason> {
    let selectors = options.selectors().map_err(|_| ForwardReason::Selector)?;
    let requirements =
        selectors.labels.requirements().len() + selectors.fields.requirements().len();
    if requirements > MAX_REQUIREMENTS {
        return Err(ForwardReason::Selector);
    }
    Ok(selectors)
}

/// Returns the memory that the selectors of a watch take while it is open.
fn retained_bytes(options: &ListOptions) -> u64 {
    let texts = [
        &options.label_selector,
        &options.field_selector,
        &options.shard_selector,
    ];
    let sizes = texts.into_iter().flatten().map(|text| {
        let values = 1 + text.bytes().filter(|byte| *byte == b',').count() as u64;
        COPIES * text.len() as u64 + values * VALUE_BYTES
    });
    sizes.sum()
}

/// Returns the shard that the read is limited to.
fn shard(
    context: &ReadContext<'_>,
    options: &ListOptions,
) -> Result<Option<ShardSelector>, ForwardReason> {
    let Some(text) = options.shard_selector.as_deref() else {
        return Ok(None);
    };
    match context.sharding {
        ParameterUse::Unknown => Err(ForwardReason::Sharding),
        ParameterUse::Ignored => Ok(None),
        ParameterUse::Heeded => ShardSelector::parse(text)
            .map(Some)
            .map_err(|_| ForwardReason::Selector),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_their_text_count() {
        let retained = |query: &str| retained_bytes(&ListOptions::parse(Some(query)).unwrap());
        assert_eq!(retained("watch=1&resourceVersion=5"), 0);
        let one = retained("fieldSelector=spec.nodeName%3Dnode-1");
        assert_eq!(one, 2 * "spec.nodeName=node-1".len() as u64 + 64);
        assert_eq!(retained("labelSelector=a&fieldSelector=b"), 2 * (2 + 64));
        let values = vec!["value-1"; 9_000].join("%2C");
        let many = retained(&format!("labelSelector=a+notin+({values})"));
        assert!((600_000..800_000).contains(&many), "{many}");
    }
}
