//! The plan of a Table.
use watershed_protocol::{
    AcceptClause, Encoding, IncludedObject, Query, Representation, TablePrinter, TableRequest,
};

use crate::catalog::ResourceType;
use crate::serve::policy::CacheMode;
use crate::serve::source::ForwardReason;

/// A Table of a type that has a printer.
pub(in crate::serve) struct TablePlan {
    pub(in crate::serve) request: TableRequest,
    pub(in crate::serve) printer: TablePrinter,
    /// Upstream would refuse the request with a Status in JSON.
    pub(super) is_refused_in_json: bool,
}

impl TablePlan {
    /// Returns the plan, if a Table is what the client likes best.
    pub(super) fn new(
        wanted: &[AcceptClause],
        query: &Query<'_>,
        resource: &ResourceType,
        mode: CacheMode,
    ) -> Result<Option<Self>, ForwardReason> {
        let Some(AcceptClause::Table(version)) = wanted.first() else {
            return Ok(None);
        };
        if mode != CacheMode::Objects {
            return Err(ForwardReason::Policy);
        }
        let printer = resource.printer.clone();
        Ok(Some(Self {
            request: TableRequest {
                version: *version,
                include: included(query)?,
            },
            printer: printer.ok_or(ForwardReason::Representation)?,
            is_refused_in_json: is_refused_in_json(wanted),
        }))
    }
}

/// Returns the part of the objects that rows have. Upstream refuses what it does not know.
fn included(query: &Query<'_>) -> Result<IncludedObject, ForwardReason> {
    let value = query.first("includeObject").unwrap_or_default();
    IncludedObject::parse(value).ok_or(ForwardReason::Parameters)
}

/// Returns `true` if the first clause that a Status can have is plain JSON. Upstream passes over
/// clauses with a conversion then.
fn is_refused_in_json(wanted: &[AcceptClause]) -> bool {
    let mut plain = wanted
        .iter()
        .skip_while(|clause| matches!(clause, AcceptClause::Table(_)));
    plain.next()
        == Some(&AcceptClause::Supported(Representation::whole(
            Encoding::Json,
        )))
}
