//! tonic's server type as a Ringmail service.

use quote::{format_ident, quote};
use syn::{Item, ItemMod, ItemTrait};

use super::signature::Signature;
use super::{Stub, prepend};

impl Stub<'_> {
    /// Adds to tonic's server module what makes its server type a Ringmail service, and what the options ask for.
    pub(super) fn serve(
        &self,
        module: &mut ItemMod,
        server: &ItemTrait,
        methods: &[Signature<'_>],
    ) -> syn::Result<()> {
        let attributes = &self.options.attributes;
        let server_type = format_ident!("{}Server", self.service.name);
        prepend(&mut module.attrs, self.module_attributes(&attributes.server_mod)?);
        let Some((_, items)) = &mut module.content else { return Ok(()) };
        for item in items.iter_mut() {
            match item {
                Item::Trait(found) => prepend(&mut found.attrs, self.attributes(&attributes.server_trait)?),
                Item::Struct(found) if found.ident == server_type => {
                    prepend(&mut found.attrs, self.attributes(&attributes.server)?);
                }
                _ => {}
            }
        }
        let arms = methods.iter().enumerate().map(|(index, signature)| self.arm(server, index, signature));
        let (runtime, own_trait, descriptor) = (self.runtime, &server.ident, self.descriptor());
        let added: syn::File = syn::parse2(quote! {
            #descriptor

            impl<T: #own_trait> #runtime::codegen::Service for #server_type<T> {
                fn descriptor(&self) -> &'static #runtime::codegen::ServiceDescriptor {
                    &SERVICE_DESCRIPTOR
                }

                fn call(
                    &self,
                    method: usize,
                    mut call: #runtime::codegen::ServerCall,
                ) -> #runtime::codegen::Handling {
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
        })?;
        items.extend(added.items);
        Ok(())
    }

    /// What a call of one method does.
    fn arm(&self, server: &ItemTrait, index: usize, signature: &Signature<'_>) -> proc_macro2::TokenStream {
        let (codec, own_trait) = (self.codec, &server.ident);
        let Signature { ident, request, response, .. } = signature;
        if signature.streams() {
            return quote!(#index => call.streaming(),);
        }
        let handler = if self.options.arc_self {
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
    }
}
