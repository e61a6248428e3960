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

/// The objects that a list or watch selects, and the scope that has them.
pub(super) struct Selected {
    pub(super) filter: ViewFilter,
    pub(super) selectors: Selectors,
    /// The selectors as authorization sees them.
    pub(super) reviewed: ReviewSelectors,
    pub(super) scope: ScopeChoice,
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
