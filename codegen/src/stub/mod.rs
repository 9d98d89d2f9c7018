//! From services to Rust: tonic's server module with Ringmail's service in it, and Ringmail's client.
//!
//! tonic's generator makes the trait and the server type, so both are tonic's own. What is added is written from that
//! trait, as parsed Rust, and so agrees with it in every type.

mod client;
mod descriptor;
mod server;
mod signature;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use proc_macro2::TokenStream;
use prost_build::{Service, ServiceGenerator};
use quote::format_ident;
use syn::{Attribute, Ident, Item, ItemMod};

use crate::error::BuildError;
use crate::paths::{ByPath, attributes_for, covers};

/// What messages need not obey: with lints stricter than the defaults, comments and names from a file would cause
/// warnings in the user's crate.
pub(crate) const MESSAGE_LINTS: &str =
    "missing_docs, rustdoc::all, clippy::all, clippy::nursery, clippy::pedantic";

/// What stubs need not obey besides.
const STUB_LINTS: &str =
    "deprecated, non_camel_case_types, non_snake_case, unreachable_pub, unused_qualifications";

/// Options of the generator.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Path of the `ringmail` crate, `::ringmail` unless renamed.
    pub(crate) runtime: String,
    pub(crate) client: bool,
    pub(crate) server: bool,
    /// Also tonic's client.
    pub(crate) grpc_client: bool,
    pub(crate) arc_self: bool,
    pub(crate) emit_package: bool,
    /// Type that makes a codec for an encoded and a decoded type.
    pub(crate) codec: String,
    pub(crate) disable_comments: Vec<String>,
    pub(crate) attributes: StubAttributes,
}

/// What users want written before the items.
#[derive(Clone, Debug, Default)]
pub(crate) struct StubAttributes {
    pub(crate) server_mod: ByPath,
    pub(crate) server: ByPath,
    pub(crate) server_trait: ByPath,
    pub(crate) client_mod: ByPath,
    pub(crate) client: ByPath,
}

/// The first thing that went wrong; prost's interface has no way to return it.
pub(crate) type Failure = Rc<RefCell<Option<BuildError>>>;

/// Wraps tonic's generator.
pub(crate) struct Generator {
    tonic: Box<dyn ServiceGenerator>,
    options: Options,
    failure: Failure,
    /// Which service of which package made a module of this name.
    modules: HashMap<(String, String), String>,
}

impl Generator {
    pub(crate) fn new(tonic: Box<dyn ServiceGenerator>, options: Options, failure: Failure) -> Self {
        Self { tonic, options, failure, modules: HashMap::new() }
    }

    /// The code for one service.
    fn stubs(&mut self, mut service: Service) -> syn::Result<String> {
        self.drop_disabled_comments(&mut service);
        let mut for_tonic = service.clone();
        if !self.options.emit_package {
            // tonic's generator has no option for this, but leaves out a package that is not there.
            for_tonic.package.clear();
        }
        let mut theirs = String::new();
        self.tonic.generate(for_tonic, &mut theirs);
        let items = extend(&theirs, &service, &self.options)?;
        for item in &items {
            self.claim(item, &service)?;
        }
        Ok(prettyplease::unparse(&syn::File { shebang: None, attrs: Vec::new(), items }))
    }

    fn drop_disabled_comments(&self, service: &mut Service) {
        let disabled = |name: &str| self.options.disable_comments.iter().any(|path| covers(path, name));
        let name = path_name(service);
        for method in &mut service.methods {
            if disabled(&format!("{name}.{}", method.proto_name)) {
                method.comments.leading.clear();
            }
        }
        if disabled(&name) {
            service.comments.leading.clear();
        }
    }

    /// Two services may have names from which the same Rust is made.
    fn claim(&mut self, item: &Item, service: &Service) -> syn::Result<()> {
        let Item::Mod(module) = item else { return Ok(()) };
        let key = (service.package.clone(), module.ident.to_string());
        match self.modules.insert(key, service.proto_name.clone()) {
            Some(other) => Err(problem(format!(
                "the module {} is made for {other} too; rename one of the services",
                module.ident
            ))),
            None => Ok(()),
        }
    }
}

impl ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, buffer: &mut String) {
        let name = path_name(&service);
        match self.stubs(service) {
            Ok(code) => buffer.push_str(&code),
            Err(error) => {
                let service = name.trim_start_matches('.').to_owned();
                let error = BuildError::Service { service, reason: error.to_string() };
                self.failure.borrow_mut().get_or_insert(error);
            }
        }
    }
}

/// The name that path options are compared with: `.package.Service`.
fn path_name(service: &Service) -> String {
    match service.package.as_str() {
        "" => format!(".{}", service.proto_name),
        package => format!(".{package}.{}", service.proto_name),
    }
}

fn problem(text: impl std::fmt::Display) -> syn::Error {
    syn::Error::new(proc_macro2::Span::call_site(), text)
}

/// The modules for one service, from what tonic generated for it.
fn extend(theirs: &str, service: &Service, options: &Options) -> syn::Result<Vec<Item>> {
    let runtime: syn::Path = syn::parse_str(&options.runtime)?;
    let codec: syn::Path = syn::parse_str(&options.codec)?;
    let modules: Vec<ItemMod> = syn::parse_file(theirs)?
        .items
        .into_iter()
        .filter_map(|item| if let Item::Mod(module) = item { Some(module) } else { None })
        .collect();
    let mut items = Vec::new();
    for mut module in modules {
        let own_trait = contents(&module).find_map(|item| match item {
            Item::Trait(found) => Some(found.clone()),
            _ => None,
        });
        let stub = Stub { service, options, runtime: &runtime, codec: &codec };
        stub.resolve_paths(&mut module)?;
        match own_trait {
            Some(server) => {
                let methods = signature::methods(service, &server)?;
                if options.client {
                    let ident = renamed(&module.ident, "server", "client");
                    items.push(syn::parse2(stub.client(&ident, &methods)?)?);
                }
                if options.server {
                    stub.serve(&mut module, &server, &methods)?;
                    items.push(Item::Mod(module));
                }
            }
            None if options.grpc_client => {
                stub.mark_tonics_client(&mut module)?;
                module.ident = renamed(&module.ident, "client", "grpc_client");
                items.push(Item::Mod(module));
            }
            None => {}
        }
    }
    Ok(items)
}

fn contents(module: &ItemMod) -> impl Iterator<Item = &Item> {
    module.content.iter().flat_map(|(_, items)| items)
}

/// Exchanges the end of a module's name.
fn renamed(ident: &Ident, end: &str, new_end: &str) -> Ident {
    let name = ident.to_string();
    format_ident!("{}{new_end}", name.strip_suffix(end).unwrap_or(&name))
}

/// What all parts of a service's stubs are made from.
struct Stub<'a> {
    service: &'a Service,
    options: &'a Options,
    runtime: &'a syn::Path,
    codec: &'a syn::Path,
}

impl Stub<'_> {
    /// Makes `tonic` and `tonic_prost` in tonic's code mean what `ringmail` re-exports, so that users need not depend
    /// on them.
    fn resolve_paths(&self, module: &mut ItemMod) -> syn::Result<()> {
        let (runtime, lints) = (self.runtime, lints()?);
        module.attrs.push(syn::parse_quote!(#[allow(#lints)]));
        if let Some((_, items)) = &mut module.content {
            let uses = quote::quote! {
                #[allow(unused_imports)]
                use #runtime::codegen::{tonic, tonic_prost};
            };
            items.insert(0, syn::parse2(uses)?);
        }
        Ok(())
    }

    /// Attributes for something that is made for this service, or for the module that it is in.
    fn attributes(&self, options: &ByPath) -> syn::Result<Vec<Attribute>> {
        let rust_name = format!(".{}", self.service.name);
        attributes_for(options, &[&path_name(self.service), &rust_name])
    }

    fn module_attributes(&self, options: &ByPath) -> syn::Result<Vec<Attribute>> {
        let package = format!(".{}", self.service.package);
        attributes_for(options, &[&path_name(self.service), &package])
    }
}

/// What stubs need not obey, for `#[allow(…)]`.
fn lints() -> syn::Result<TokenStream> {
    format!("{MESSAGE_LINTS}, {STUB_LINTS}").parse().map_err(syn::Error::from)
}

/// Puts attributes before those that an item already has.
fn prepend(attributes: &mut Vec<Attribute>, new: Vec<Attribute>) {
    attributes.splice(0..0, new);
}

/// Comments of the file as documentation, with what is not Rust marked as such.
fn documentation(comments: &[String]) -> Vec<TokenStream> {
    comments
        .iter()
        .flat_map(|comment| comment.lines())
        .map(|line| {
            let line = line.replace('[', "\\[").replace(']', "\\]");
            quote::quote!(#[doc = #line])
        })
        .collect()
}
