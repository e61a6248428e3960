//! The printers of types that upstream serves by itself.
//!
//! Each is a list of columns, a few fields of the object, and a function that makes cells of them.
//! Source: `kubernetes/pkg/printers/internalversion/printers.go`.
mod batch;
mod binding;
mod definition;
mod disruption;
mod event;
mod ingress;
mod meta;
mod network;
mod node;
mod pod;
mod simple;
mod storage;
mod template;
mod workload;

pub(super) use definition::BuiltinPrinter;

use crate::GroupVersionResource;

const ALL: [&[BuiltinPrinter]; 11] = [
    batch::PRINTERS,
    binding::PRINTERS,
    disruption::PRINTERS,
    event::PRINTERS,
    ingress::PRINTERS,
    network::PRINTERS,
    node::PRINTERS,
    pod::PRINTERS,
    simple::PRINTERS,
    storage::PRINTERS,
    workload::PRINTERS,
];

/// Returns the printer of a type.
pub(super) fn find(gvr: &GroupVersionResource) -> Option<&'static BuiltinPrinter> {
    let name = (&*gvr.group, &*gvr.version, &*gvr.resource);
    let mut printers = ALL.iter().copied().flatten();
    printers.find(|printer| printer.resource == name)
}
