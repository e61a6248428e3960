//! The selectors of a list or watch.
use watershed_protocol::{FieldSelector, LabelSelector, ListOptions, Selection, ShardSelector};

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
    labels: Option<LabelSelector>,
    pub(super) fields: Option<FieldSelector>,
    /// The selectors as authorization sees them.
    pub(super) selectors: ReviewSelectors,
    pub(super) scope: ScopeChoice,
}

/// Leaves selectors of very many requirements to upstream.
pub(super) fn check_length(
    labels: Option<&LabelSelector>,
    fields: Option<&FieldSelector>,
) -> Result<(), ForwardReason> {
    let requirements = labels.map_or(0, |labels| labels.requirements().len())
        + fields.map_or(0, |fields| fields.requirements().len());
    if requirements > MAX_REQUIREMENTS {
        return Err(ForwardReason::Selector);
    }
    Ok(())
}

impl Selected {
    pub(super) fn new(
        context: &ReadContext<'_>,
        options: &ListOptions,
    ) -> Result<Self, ForwardReason> {
        let resource = context.resource;
        let labels = options
            .label_selector
            .as_deref()
            .map(LabelSelector::parse)
            .transpose()
            .map_err(|_| ForwardReason::Selector)?;
        let fields = options
            .field_selector
            .as_deref()
            .map(FieldSelector::parse)
            .transpose()
            .map_err(|_| ForwardReason::Selector)?;
        check_length(labels.as_ref(), fields.as_ref())?;
        let selectors = ReviewSelectors::new(labels.as_ref(), fields.as_ref());
        let namespace = context.namespace.map(str::to_owned);
        let scope = context
            .policy
            .scope_for(&resource.gvr, false, || Selection {
                namespace: namespace.clone(),
                labels: labels.clone().unwrap_or_default(),
                fields: fields.clone().unwrap_or_default(),
            })
            .ok_or(ForwardReason::NotCovered)?;
        let filter = ViewFilter::new(namespace, labels.clone(), fields.as_ref(), &resource.fields)
            .map_err(|_| ForwardReason::Selector)?;
        let filter = match shard(context, options)? {
            Some(shard) => filter.within(shard),
            None => filter,
        };
        let selected = Self {
            filter,
            labels,
            fields,
            selectors,
            scope,
        };
        if context.mode == CacheMode::Metadata && selected.reads_beyond_metadata(context) {
            return Err(ForwardReason::Policy);
        }
        Ok(selected)
    }

    /// Returns the selection of the read.
    pub(super) fn selection(&self, context: &ReadContext<'_>) -> Selection {
        Selection {
            namespace: context.namespace.map(str::to_owned),
            labels: self.labels.clone().unwrap_or_default(),
            fields: self.fields.clone().unwrap_or_default(),
        }
    }

    fn reads_beyond_metadata(&self, context: &ReadContext<'_>) -> bool {
        self.fields.iter().any(|fields| {
            fields
                .requirements()
                .iter()
                .any(|field| !context.resource.fields.is_metadata_label(&field.field))
        })
    }

    /// Returns `true` if a field selector requires one value of `field`.
    pub(super) fn requires(&self, field: &str) -> bool {
        self.fields
            .as_ref()
            .is_some_and(|fields| fields.required_value(field).is_some())
    }
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
