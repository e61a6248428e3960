//! The source files of one crate, and which file refers to which.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

/// A module's path below the crate, for example `["serve", "plan"]`. The crate itself is empty.
pub(crate) type ModulePath = Vec<String>;

/// One crate of this workspace.
pub(crate) struct Crate {
    /// Every module that production code has, with its file.
    files: BTreeMap<ModulePath, PathBuf>,
    parsed: BTreeMap<ModulePath, Module>,
}

/// The declarations and references of one file.
#[derive(Default)]
struct Module {
    /// The names of types that are declared outside of functions and inner modules.
    types: Vec<String>,
    /// The names that the module re-exports, each with its origin.
    exports: BTreeMap<String, Vec<String>>,
    /// Every path in its code.
    paths: BTreeSet<Vec<String>>,
    /// Inner modules that exist for tests alone.
    test_modules: BTreeSet<String>,
}

/// The root folder of the checked workspace.
pub(crate) fn top() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from)
}

impl Crate {
    /// Reads the crate whose `src` folder is given, relative to the workspace.
    pub(crate) fn read(source: &str) -> Self {
        let source = top().join(source);
        let mut files = BTreeMap::new();
        collect(&source, &mut Vec::new(), &mut files);
        let texts = files
            .iter()
            .map(|(path, file)| (path.clone(), fs::read_to_string(file).unwrap()));
        let parsed = parse(texts);
        let is_test = |path: &ModulePath| {
            (0..path.len()).any(|depth| {
                parsed
                    .get(&path[..depth])
                    .is_some_and(|parent| parent.test_modules.contains(&path[depth]))
            })
        };
        files.retain(|path, _| !is_test(path));
        Self { files, parsed }
    }

    /// Returns the file graph: every file with the files that its code refers to.
    pub(crate) fn references(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let of = |path: &ModulePath| {
            let module = &self.parsed[path];
            module
                .paths
                .iter()
                .filter_map(|words| self.resolve(path, words, 0))
                .filter(|target| target != path && self.files.contains_key(target))
                .collect()
        };
        self.files
            .keys()
            // The crate's own file only declares modules.
            .filter(|path| !path.is_empty())
            .map(|path| (path.clone(), of(path)))
            .collect()
    }

    /// Returns every type that is declared at the top of a file, with its file.
    pub(crate) fn types(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (path, file) in &self.files {
            let file = file.strip_prefix(top()).unwrap();
            for name in &self.parsed[path].types {
                found.push((name.clone(), file.display().to_string()));
            }
        }
        found
    }

    /// Finds the module that a path leads to, seen from the module `from`.
    fn resolve(&self, from: &[String], words: &[String], depth: usize) -> Option<ModulePath> {
        // Valid Rust has no cycle of re-exports. The limit is for malformed input.
        if depth > 16 {
            return None;
        }
        let mut at: ModulePath = from.to_vec();
        let mut rest = words;
        match words.first()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop()?;
            }
            name => {
                let child = [from, &[name.to_owned()]].concat();
                if self.parsed.contains_key(&child) {
                    at = child;
                } else {
                    let target = self.parsed.get(from)?.exports.get(name)?;
                    return self.resolve(from, target, depth + 1);
                }
            }
        }
        rest = &rest[1..];
        for (index, name) in rest.iter().enumerate() {
            if name == "super" {
                at.pop()?;
                continue;
            }
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.parsed.contains_key(&child) {
                at = child;
            } else if let Some(target) = self.parsed.get(&at).and_then(|m| m.exports.get(name)) {
                let further = [target, &rest[index + 1..]].concat();
                return self
                    .resolve(&at, &further, depth + 1)
                    .or_else(|| Some(at.clone()));
            } else {
                break;
            }
        }
        Some(at)
    }

    /// Returns the files of one module with their texts, those of tests left out.
    pub(crate) fn texts(&self, module: &str) -> Vec<(String, String)> {
        let files = self
            .files
            .iter()
            .filter(|(path, _)| path.first().is_some_and(|first| first == module));
        files
            .map(|(_, file)| {
                let text = fs::read_to_string(file).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                (file.display().to_string(), code.to_owned())
            })
            .collect()
    }
}

/// Reads a crate from texts instead of files, for the tests of these checks.
pub(crate) fn crate_of(texts: &[(&[&str], &str)]) -> Crate {
    let owned = |path: &[&str]| path.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let texts: Vec<_> = texts
        .iter()
        .map(|(path, text)| (owned(path), (*text).to_owned()))
        .collect();
    let file = |path: &ModulePath| top().join(format!("{}.rs", path.join("/")));
    Crate {
        files: texts
            .iter()
            .map(|(path, _)| (path.clone(), file(path)))
            .collect(),
        parsed: parse(texts),
    }
}

fn collect(folder: &Path, at: &mut ModulePath, files: &mut BTreeMap<ModulePath, PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            at.push(name);
            collect(&path, at, files);
            at.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_crate = at.is_empty() && name == "lib";
            // The program's own file stands beside the library.
            if at.is_empty() && name == "main" {
                continue;
            }
            let module = if is_crate {
                Vec::new()
            } else {
                [&at[..], &[name]].concat()
            };
            files.insert(module, path);
        }
    }
}

fn parse(texts: impl IntoIterator<Item = (ModulePath, String)>) -> BTreeMap<ModulePath, Module> {
    let mut modules = BTreeMap::new();
    for (path, text) in texts {
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut module = Module {
            types: file.items.iter().filter_map(type_name).collect(),
            ..Module::default()
        };
        module.visit_file(&file);
        modules.insert(path, module);
    }
    modules
}

fn type_name(item: &Item) -> Option<String> {
    let (name, attributes) = match item {
        Item::Struct(item) => (&item.ident, &item.attrs),
        Item::Enum(item) => (&item.ident, &item.attrs),
        Item::Trait(item) => (&item.ident, &item.attrs),
        Item::Type(item) => (&item.ident, &item.attrs),
        Item::Union(item) => (&item.ident, &item.attrs),
        _ => return None,
    };
    (!is_for_tests(attributes)).then(|| name.to_string())
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// Every name that a `use` brings in, with the whole path to it.
fn flatten(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, found);
            }
        }
        UseTree::Name(name) if name.ident == "self" => {
            let last = before.last().cloned().unwrap_or_default();
            found.push((last, before.clone()));
        }
        UseTree::Name(name) => {
            let whole = [&before[..], &[name.ident.to_string()]].concat();
            found.push((name.ident.to_string(), whole));
        }
        UseTree::Rename(rename) => {
            let whole = [&before[..], &[rename.ident.to_string()]].concat();
            found.push((rename.rename.to_string(), whole));
        }
        UseTree::Glob(_) => found.push(("*".to_owned(), before.clone())),
    }
}

impl Module {
    /// Finds paths in the arguments of macros, which are not parsed.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        let mut words: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_path(&mut words);
                    }
                    words.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !words.is_empty() => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut words);
                    self.visit_tokens(group.stream());
                }
                _ => self.end_path(&mut words),
            }
        }
        self.end_path(&mut words);
    }

    fn end_path(&mut self, words: &mut Vec<String>) {
        let words = std::mem::take(words);
        if words.len() > 1 {
            self.paths.insert(words);
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => {
                if item.content.is_none() && is_for_tests(&item.attrs) {
                    self.test_modules.insert(item.ident.to_string());
                }
                &item.attrs
            }
            Item::Use(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Const(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut names = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut names);
        for (name, path) in names {
            if matches!(item.vis, Visibility::Inherited) {
                self.paths.insert(path);
            } else {
                self.exports.insert(name, path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.paths.insert(words.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_tokens(call.tokens.clone());
    }

    // A visibility such as `pub(in crate::a)` and an attribute depend on nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}
