//! Selectors in the form of a review.
use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, ResourceAttributes,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    FieldSelectorRequirement, LabelSelectorRequirement,
};
use watershed_protocol::{FieldOperator, FieldSelector, LabelOperator, LabelSelector};

/// Bytes that a requirement takes without its values and its text.
const REQUIREMENT_BYTES: usize = 128;
/// Bytes that a value takes without its text.
const VALUE_BYTES: usize = 48;
/// The operators of requirements.
const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// Selector requirements in the form of a review.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReviewSelectors {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

impl ReviewSelectors {
    /// Converts selectors as kube-apiserver does for an authorization webhook.
    ///
    /// `=` and `!=` become In and NotIn. Greater and less than are left out: without them a review
    /// is about more objects, never about fewer.
    /// Source: plugin/pkg/authorizer/webhook/webhook.go (labelSelectorAsSelector and the like).
    pub fn new(labels: &LabelSelector, fields: &FieldSelector) -> Self {
        let labels = labels.requirements().iter().filter_map(|requirement| {
            let operator = match requirement.operator {
                LabelOperator::In | LabelOperator::Equals | LabelOperator::DoubleEquals => "In",
                LabelOperator::NotIn | LabelOperator::NotEquals => "NotIn",
                LabelOperator::Exists => "Exists",
                LabelOperator::DoesNotExist => "DoesNotExist",
                LabelOperator::GreaterThan | LabelOperator::LessThan => return None,
            };
            Some(Requirement {
                key: requirement.key.clone(),
                operator,
                values: requirement.values.clone(),
            })
        });
        let fields = fields.requirements().iter().map(|requirement| Requirement {
            key: requirement.field.clone(),
            operator: match requirement.operator {
                FieldOperator::Equals => "In",
                FieldOperator::NotEquals => "NotIn",
            },
            values: vec![requirement.value.clone()],
        });
        Self {
            labels: labels.collect(),
            fields: fields.collect(),
        }
    }

    /// Returns `true` if a field must have this value.
    pub(in crate::access) fn require_field(&self, field: &str, value: &str) -> bool {
        self.fields.iter().any(|required| {
            required.key == field && required.operator == "In" && required.values == [value]
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns the bytes that the selectors take. Those of many short terms take a hundred times as
    /// much as their text.
    pub(super) fn size(&self) -> usize {
        let requirements = self.labels.iter().chain(&self.fields);
        requirements.map(Requirement::size).sum()
    }

    /// Returns the field selector in the form of a review, if there is one.
    pub(super) fn for_fields(&self) -> Option<FieldSelectorAttributes> {
        let fields = self.fields.iter().map(Requirement::for_field);
        (!self.fields.is_empty()).then(|| FieldSelectorAttributes {
            requirements: Some(fields.collect()),
            raw_selector: None,
        })
    }

    /// Returns the label selector in the form of a review, if there is one.
    pub(super) fn for_labels(&self) -> Option<LabelSelectorAttributes> {
        let labels = self.labels.iter().map(Requirement::for_label);
        (!self.labels.is_empty()).then(|| LabelSelectorAttributes {
            requirements: Some(labels.collect()),
            raw_selector: None,
        })
    }

    /// Returns the selectors of a review; `None` if one has an operator that is not known.
    pub(super) fn of_review(attributes: &ResourceAttributes) -> Option<Self> {
        let labels = attributes.label_selector.as_ref();
        let labels = labels.and_then(|selector| selector.requirements.as_deref());
        let labels = labels.unwrap_or_default().iter().map(|required| {
            Requirement::of_review(&required.key, &required.operator, required.values.as_ref())
        });
        let fields = attributes.field_selector.as_ref();
        let fields = fields.and_then(|selector| selector.requirements.as_deref());
        let fields = fields.unwrap_or_default().iter().map(|required| {
            Requirement::of_review(&required.key, &required.operator, required.values.as_ref())
        });
        Some(Self {
            labels: labels.collect::<Option<_>>()?,
            fields: fields.collect::<Option<_>>()?,
        })
    }
}

/// One requirement of a selector, in the form of a review.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Requirement {
    key: String,
    operator: &'static str,
    values: Vec<String>,
}

impl Requirement {
    fn of_review(key: &str, operator: &str, values: Option<&Vec<String>>) -> Option<Self> {
        Some(Self {
            key: key.to_owned(),
            operator: OPERATORS.into_iter().find(|known| *known == operator)?,
            values: values.cloned().unwrap_or_default(),
        })
    }

    fn size(&self) -> usize {
        let values = self.values.iter().map(|value| VALUE_BYTES + value.len());
        REQUIREMENT_BYTES + self.key.len() + values.sum::<usize>()
    }

    fn for_label(&self) -> LabelSelectorRequirement {
        LabelSelectorRequirement {
            key: self.key.clone(),
            operator: self.operator.to_owned(),
            values: Some(self.values.clone()).filter(|values| !values.is_empty()),
        }
    }

    fn for_field(&self) -> FieldSelectorRequirement {
        FieldSelectorRequirement {
            key: self.key.clone(),
            operator: self.operator.to_owned(),
            values: Some(self.values.clone()),
        }
    }
}
