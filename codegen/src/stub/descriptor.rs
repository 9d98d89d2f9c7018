//! What is known of a service at run time.

use proc_macro2::TokenStream;
use prost_types::method_options::IdempotencyLevel;
use quote::quote;

use super::Stub;

impl Stub<'_> {
    /// `static SERVICE_DESCRIPTOR`.
    pub(super) fn descriptor(&self) -> TokenStream {
        let (service, runtime) = (self.service, self.runtime);
        let name = match (self.options.emit_package, service.package.as_str()) {
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
}
