//! From services to Rust: tonic's server module with Ringmail's service in it, and Ringmail's client.
//!
//! tonic's generator makes the trait and the server type, so both are tonic's own. What is added is written from that
//! trait, as parsed Rust, and so agrees with it in every type.

use std::cell::RefCell;
use std::rc::Rc;

use proc_macro2::{Span, TokenStream};
use prost_build::{Method, Service, ServiceGenerator};
use quote::{format_ident, quote};
use syn::{Ident, Item, ItemMod, ItemTrait, TraitItem, Type};

use crate::error::BuildError;

/// Names that the client's own methods have, or that are special to Rust: methods of a service with these names get an
/// underscore behind them in the client.
const TAKEN: [&str; 9] = [
    "new",
    "connect",
    "channel",
    "clone",
    "drop",
    "fmt",
    "max_decoding_message_size",
    "max_encoding_message_size",
    "set_limits",
];

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
    pub(crate) client_attributes: Vec<(String, String)>,
}

/// The first thing that went wrong; prost's interface has no way to return it.
pub(crate) type Failure = Rc<RefCell<Option<BuildError>>>;

/// Wraps tonic's generator.
pub(crate) struct Generator {
    pub(crate) tonic: Box<dyn ServiceGenerator>,
    pub(crate) options: Options,
    pub(crate) failure: Failure,
}

impl ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, buffer: &mut String) {
        let name = format!("{}.{}", service.package, service.proto_name);
        let mut theirs = String::new();
        self.tonic.generate(service.clone(), &mut theirs);
        match extend(&theirs, &service, &self.options) {
            Ok(code) => buffer.push_str(&code),
            Err(error) => {
                let error = BuildError::Service { service: name, reason: error.to_string() };
                self.failure.borrow_mut().get_or_insert(error);
            }
        }
    }
}

/// Rewrites what tonic generated for one service.
fn extend(theirs: &str, service: &Service, options: &Options) -> syn::Result<String> {
    let mut file = syn::parse_file(theirs)?;
    let runtime: syn::Path = syn::parse_str(&options.runtime)?;
    let mut items = Vec::new();
    for item in std::mem::take(&mut file.items) {
        let Item::Mod(mut module) = item else { continue };
        let own_trait = module.content.iter().flat_map(|(_, items)| items).find_map(|item| match item {
            Item::Trait(found) => Some(found.clone()),
            _ => None,
        });
        resolve_paths(&mut module, &runtime)?;
        match own_trait {
            Some(server) => {
                let methods = methods(service, &server)?;
                if options.client {
                    items.push(syn::parse2(client(service, &methods, &module.ident, options, &runtime)?)?);
                }
                if options.server {
                    let added = serve(service, &server, &methods, options, &runtime)?;
                    push_items(&mut module, added)?;
                    items.push(Item::Mod(module));
                }
            }
            None if options.grpc_client => {
                module.ident = format_ident!("{}grpc_client", module.ident.to_string().replace("client", ""));
                items.push(Item::Mod(module));
            }
            None => {}
        }
    }
    file.items = items;
    Ok(prettyplease::unparse(&file))
}

/// Makes `tonic` and `tonic_prost` in tonic's code mean what `ringmail` re-exports, so that users need not depend on
/// them.
fn resolve_paths(module: &mut ItemMod, runtime: &syn::Path) -> syn::Result<()> {
    // Names come from the file, and lints may be stricter than tonic's generator knows.
    module.attrs.push(syn::parse_quote! {
        #[allow(missing_docs, unreachable_pub, non_snake_case, non_camel_case_types, clippy::all, clippy::nursery, clippy::pedantic)]
    });
    let Some((_, items)) = &mut module.content else { return Ok(()) };
    let uses: Item = syn::parse2(quote! {
        #[allow(unused_imports)]
        use #runtime::codegen::{tonic, tonic_prost};
    })?;
    items.insert(0, uses);
    Ok(())
}

fn push_items(module: &mut ItemMod, tokens: TokenStream) -> syn::Result<()> {
    let added: syn::File = syn::parse2(tokens)?;
    if let Some((_, items)) = &mut module.content {
        items.extend(added.items);
    }
    Ok(())
}

/// What the stubs need to know of a method.
struct Signature<'a> {
    method: &'a Method,
    /// Its name in the trait.
    ident: Ident,
    request: Type,
    response: Type,
}

/// Pairs the methods of the file with those of the trait.
fn methods<'a>(service: &'a Service, server: &ItemTrait) -> syn::Result<Vec<Signature<'a>>> {
    let functions = server.items.iter().filter_map(|item| match item {
        TraitItem::Fn(function) => Some(function),
        _ => None,
    });
    let streams: std::collections::HashMap<_, _> = server
        .items
        .iter()
        .filter_map(|item| match item {
            TraitItem::Type(stream) => Some((stream.ident.to_string(), stream)),
            _ => None,
        })
        .collect();
    let unexpected =
        |what: &str| syn::Error::new(Span::call_site(), format!("tonic generated an unexpected {what}"));
    service
        .methods
        .iter()
        .zip(functions)
        .map(|(method, function)| {
            let argument =
                function.sig.inputs.iter().nth(1).ok_or_else(|| unexpected("method without a request"))?;
            let syn::FnArg::Typed(argument) = argument else { return Err(unexpected("receiver")) };
            let mut request = generic(&argument.ty).ok_or_else(|| unexpected("request type"))?;
            if method.client_streaming {
                request = generic(&request).ok_or_else(|| unexpected("request stream"))?;
            }
            let syn::ReturnType::Type(_, returned) = &function.sig.output else {
                return Err(unexpected("return type"));
            };
            let response =
                generic(returned).and_then(|ok| generic(&ok)).ok_or_else(|| unexpected("response type"))?;
            let response = if method.server_streaming {
                let Type::Path(associated) = &response else { return Err(unexpected("response stream")) };
                let name = associated.path.segments.last().map(|segment| segment.ident.to_string());
                let stream =
                    name.and_then(|name| streams.get(&name)).ok_or_else(|| unexpected("stream type"))?;
                stream_item(stream).ok_or_else(|| unexpected("stream's item"))?
            } else {
                response
            };
            Ok(Signature { method, ident: function.sig.ident.clone(), request, response })
        })
        .collect()
}

/// The first type argument: `T` of `Request<T>`.
fn generic(ty: &Type) -> Option<Type> {
    let Type::Path(path) = ty else { return None };
    let syn::PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else {
        return None;
    };
    arguments.args.iter().find_map(|argument| match argument {
        syn::GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    })
}

/// `T` of `type XStream: Stream<Item = Result<T, Status>> + …`.
fn stream_item(stream: &syn::TraitItemType) -> Option<Type> {
    stream.bounds.iter().find_map(|bound| {
        let syn::TypeParamBound::Trait(bound) = bound else { return None };
        let syn::PathArguments::AngleBracketed(arguments) = &bound.path.segments.last()?.arguments else {
            return None;
        };
        arguments.args.iter().find_map(|argument| match argument {
            syn::GenericArgument::AssocType(item) if item.ident == "Item" => generic(&item.ty),
            _ => None,
        })
    })
}

/// `static` with what is known of the service.
fn descriptor(service: &Service, options: &Options, runtime: &syn::Path) -> TokenStream {
    let name = match (options.emit_package, service.package.as_str()) {
        (false, _) | (_, "") => service.proto_name.clone(),
        (_, package) => format!("{package}.{}", service.proto_name),
    };
    let methods = service.methods.iter().map(|method| {
        let (path, short) = (format!("/{name}/{}", method.proto_name), &method.proto_name);
        let kind = match (method.client_streaming, method.server_streaming) {
            (false, false) => quote!(Unary),
            (true, false) => quote!(ClientStreaming),
            (false, true) => quote!(ServerStreaming),
            (true, true) => quote!(Bidi),
        };
        use prost_types::method_options::IdempotencyLevel;
        let idempotent = method.options.idempotency_level() != IdempotencyLevel::IdempotencyUnknown;
        quote! {
            #runtime::codegen::MethodDescriptor {
                path: #path,
                name: #short,
                kind: #runtime::codegen::CallKind::#kind,
                idempotent: #idempotent,
            }
        }
    });
    quote! {
        static SERVICE_DESCRIPTOR: #runtime::codegen::ServiceDescriptor = #runtime::codegen::ServiceDescriptor {
            name: #name,
            methods: &[#(#methods),*],
        };
    }
}

/// What makes tonic's server type a Ringmail service.
fn serve(
    service: &Service,
    server: &ItemTrait,
    methods: &[Signature<'_>],
    options: &Options,
    runtime: &syn::Path,
) -> syn::Result<TokenStream> {
    let (own_trait, server_type) = (&server.ident, format_ident!("{}Server", service.name));
    let codec: syn::Path = syn::parse_str(&options.codec)?;
    let arms = methods.iter().enumerate().map(|(index, signature)| {
        let Signature { method, ident, request, response } = signature;
        if method.client_streaming || method.server_streaming {
            return quote!(#index => call.streaming(),);
        }
        let handler = if options.arc_self {
            quote!({
                let service = ::std::sync::Arc::clone(&self.inner);
                move |_: &T, request| <T as #own_trait>::#ident(service, request)
            })
        } else {
            quote!(|service, request| <T as #own_trait>::#ident(service, request))
        };
        quote! {
            #index => call.unary(&self.inner, #codec::<#response, #request>::new(), #handler),
        }
    });
    let descriptor = descriptor(service, options, runtime);
    Ok(quote! {
        #descriptor

        impl<T: #own_trait> #runtime::codegen::Service for #server_type<T> {
            fn descriptor(&self) -> &'static #runtime::codegen::ServiceDescriptor {
                &SERVICE_DESCRIPTOR
            }

            #[allow(deprecated)]
            fn call(&self, method: usize, mut call: #runtime::codegen::ServerCall) -> #runtime::codegen::Handling {
                call.limits(#runtime::codegen::Limits {
                    max_decoding_message_size: self.max_decoding_message_size,
                    max_encoding_message_size: self.max_encoding_message_size,
                });
                match method {
                    #(#arms)*
                    _ => call.unknown_method(),
                }
            }
        }
    })
}

/// The client's module.
fn client(
    service: &Service,
    methods: &[Signature<'_>],
    server_module: &Ident,
    options: &Options,
    runtime: &syn::Path,
) -> syn::Result<TokenStream> {
    let module = server_module.to_string();
    let module = format_ident!("{}client", module.strip_suffix("server").unwrap_or(&module));
    let client = format_ident!("{}Client", service.name);
    let codec: syn::Path = syn::parse_str(&options.codec)?;
    let comments = documentation(&service.comments.leading);
    let full_name = format!("{}.{}", service.package, service.proto_name);
    let attributes = options
        .client_attributes
        .iter()
        .filter(|(path, _)| matches(path, &full_name))
        .map(|(_, attribute)| attribute.parse::<TokenStream>().map_err(syn::Error::from))
        .collect::<syn::Result<Vec<_>>>()?;
    // Methods keep their index, which is that of the descriptor.
    let unary = methods
        .iter()
        .enumerate()
        .filter(|(_, signature)| !signature.method.client_streaming && !signature.method.server_streaming);
    let calls = unary.map(|(index, signature)| {
        let Signature { method, ident, request, response } = signature;
        let name = if TAKEN.contains(&ident.to_string().as_str()) { format_ident!("{ident}_") } else { ident.clone() };
        let comments = documentation(&method.comments.leading);
        let deprecated = method.options.deprecated().then(|| quote!(#[deprecated]));
        quote! {
            #(#comments)*
            #deprecated
            pub async fn #name(
                &self,
                request: impl #runtime::codegen::tonic::IntoRequest<#request>,
            ) -> ::std::result::Result<#runtime::codegen::tonic::Response<#response>, #runtime::codegen::tonic::Status>
            {
                let request = #runtime::codegen::tonic::IntoRequest::into_request(request);
                self.inner.unary(#index, request, #codec::<#request, #response>::new()).await
            }
        }
    });
    let descriptor = descriptor(service, options, runtime);
    Ok(quote! {
        /// Generated client.
        #[allow(non_snake_case)]
        pub mod #module {
            #![allow(dead_code, missing_docs, non_camel_case_types, clippy::all, clippy::nursery, clippy::pedantic)]

            #descriptor

            #(#comments)*
            #(#attributes)*
            #[derive(Clone, Debug)]
            pub struct #client {
                inner: #runtime::codegen::Client,
            }

            impl #client {
                /// Connects to `ringmail://host:port` with the default settings.
                ///
                /// # Errors
                /// When nobody is there, or it is not a Ringmail server.
                pub async fn connect(
                    address: impl ::std::convert::Into<::std::string::String>,
                ) -> ::std::result::Result<Self, #runtime::ConnectError> {
                    ::std::result::Result::Ok(Self::new(#runtime::Channel::connect(address).await?))
                }

                /// A client over an existing channel.
                #[must_use]
                pub fn new(channel: #runtime::Channel) -> Self {
                    Self { inner: #runtime::codegen::Client::new(channel, &SERVICE_DESCRIPTOR) }
                }

                /// The channel that calls go through.
                #[must_use]
                pub fn channel(&self) -> &#runtime::Channel {
                    self.inner.channel()
                }

                /// Limits the size of responses, in bytes. Default: the channel's limit.
                #[must_use]
                pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                    let mut limits = self.inner.limits();
                    limits.max_decoding_message_size = ::std::option::Option::Some(limit);
                    self.inner.set_limits(limits);
                    self
                }

                /// Limits the size of requests, in bytes. Default: what the server accepts.
                #[must_use]
                pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                    let mut limits = self.inner.limits();
                    limits.max_encoding_message_size = ::std::option::Option::Some(limit);
                    self.inner.set_limits(limits);
                    self
                }

                #(#calls)*
            }
        }
    })
}

/// Comments of the file as documentation, with what is not Rust marked as such.
fn documentation(comments: &[String]) -> Vec<TokenStream> {
    comments
        .iter()
        .flat_map(|comment| comment.lines())
        .map(|line| {
            let line = line.replace('[', "\\[").replace(']', "\\]");
            quote!(#[doc = #line])
        })
        .collect()
}

/// Whether a path option (`.`, `package`, `package.Service`) covers a service.
fn matches(path: &str, full_name: &str) -> bool {
    let path = path.trim_matches('.');
    path.is_empty()
        || path == full_name
        || full_name.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
}
