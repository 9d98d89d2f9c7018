//! Methods as tonic's trait has them.

use std::collections::HashMap;

use prost_build::{Method, Service};
use syn::{GenericArgument, Ident, ItemTrait, PathArguments, TraitItem, TraitItemFn, TraitItemType, Type};

use super::problem;

/// What the stubs need to know of a method.
pub(super) struct Signature<'a> {
    pub(super) method: &'a Method,
    /// Its name in the trait.
    pub(super) ident: Ident,
    pub(super) request: Type,
    pub(super) response: Type,
}

impl Signature<'_> {
    pub(super) fn streams(&self) -> bool {
        self.method.client_streaming || self.method.server_streaming
    }
}

/// Pairs the methods of the file with those of the trait.
pub(super) fn methods<'a>(service: &'a Service, server: &ItemTrait) -> syn::Result<Vec<Signature<'a>>> {
    let mut streams = HashMap::new();
    let mut functions = Vec::new();
    for item in &server.items {
        match item {
            TraitItem::Fn(function) => functions.push(function),
            TraitItem::Type(stream) => drop(streams.insert(stream.ident.to_string(), stream)),
            _ => {}
        }
    }
    let mut taken: HashMap<String, &str> = HashMap::new();
    let methods = service.methods.iter().zip(functions).map(|(method, function)| {
        if let Some(other) = taken.insert(function.sig.ident.to_string(), &method.proto_name) {
            return Err(problem(format!(
                "the methods {other} and {} both become {} in Rust; rename one of them",
                method.proto_name, function.sig.ident
            )));
        }
        signature(method, function, &streams).ok_or_else(|| {
            problem(format!("tonic generated an unexpected signature for {}", method.proto_name))
        })
    });
    methods.collect()
}

fn signature<'a>(
    method: &'a Method,
    function: &TraitItemFn,
    streams: &HashMap<String, &TraitItemType>,
) -> Option<Signature<'a>> {
    let syn::FnArg::Typed(argument) = function.sig.inputs.iter().nth(1)? else { return None };
    let mut request = generic(&argument.ty)?;
    if method.client_streaming {
        request = generic(&request)?;
    }
    let syn::ReturnType::Type(_, returned) = &function.sig.output else { return None };
    let mut response = generic(&generic(returned)?)?;
    if method.server_streaming {
        // `Self::WatchStream`, or `BoxStream<Message>` where the method has a default.
        let Type::Path(stream) = &response else { return None };
        let name = stream.path.segments.last()?.ident.to_string();
        response = match streams.get(&name) {
            Some(stream) => stream_item(stream)?,
            None => generic(&response)?,
        };
    }
    Some(Signature { method, ident: function.sig.ident.clone(), request, response })
}

/// The first type argument: `T` of `Request<T>`.
fn generic(ty: &Type) -> Option<Type> {
    let Type::Path(path) = ty else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    })
}

/// `T` of `type XStream: Stream<Item = Result<T, Status>> + …`.
fn stream_item(stream: &TraitItemType) -> Option<Type> {
    stream.bounds.iter().find_map(|bound| {
        let syn::TypeParamBound::Trait(bound) = bound else { return None };
        let PathArguments::AngleBracketed(arguments) = &bound.path.segments.last()?.arguments else {
            return None;
        };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(item) if item.ident == "Item" => generic(&item.ty),
            _ => None,
        })
    })
}
