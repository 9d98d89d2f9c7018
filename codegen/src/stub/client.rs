//! Ringmail's client.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Ident, Item, ItemMod};

use super::signature::Signature;
use super::{Stub, documentation, lints, prepend};

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

impl Stub<'_> {
    /// The client's module.
    pub(super) fn client(&self, module: &Ident, methods: &[Signature<'_>]) -> syn::Result<TokenStream> {
        let (runtime, lints, descriptor) = (self.runtime, lints()?, self.descriptor());
        let client = format_ident!("{}Client", self.service.name);
        let comments = documentation(&self.service.comments.leading);
        let module_attributes = self.module_attributes(&self.options.attributes.client_mod)?;
        let attributes = self.attributes(&self.options.attributes.client)?;
        // Methods keep their index, which is that of the descriptor.
        let calls = methods
            .iter()
            .enumerate()
            .filter(|(_, signature)| !signature.streams())
            .map(|(index, signature)| self.method(index, signature));
        Ok(quote! {
            /// Generated client.
            #(#module_attributes)*
            #[allow(#lints)]
            pub mod #module {
                #![allow(dead_code)]

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

    fn method(&self, index: usize, signature: &Signature<'_>) -> TokenStream {
        let (runtime, codec) = (self.runtime, self.codec);
        let Signature { method, ident, request, response } = signature;
        let name = if TAKEN.contains(&ident.to_string().as_str()) {
            format_ident!("{ident}_")
        } else {
            ident.clone()
        };
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
    }

    /// Gives tonic's client what the options ask for.
    pub(super) fn mark_tonics_client(&self, module: &mut ItemMod) -> syn::Result<()> {
        let attributes = &self.options.attributes;
        prepend(&mut module.attrs, self.module_attributes(&attributes.client_mod)?);
        let Some((_, items)) = &mut module.content else { return Ok(()) };
        for item in items {
            if let Item::Struct(found) = item {
                prepend(&mut found.attrs, self.attributes(&attributes.client)?);
            }
        }
        Ok(())
    }
}
