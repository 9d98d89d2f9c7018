//! A method that returns another message than the file says.

use codegen_cases::all::acme::orders::v1::OrderId;
use codegen_cases::all::{Beat, root_server::Root};
use ringmail::{Request, Response, Status};

struct Heart;

#[ringmail::async_trait]
impl Root for Heart {
    async fn ping(&self, _: Request<Beat>) -> Result<Response<OrderId>, Status> {
        Ok(Response::new(OrderId::default()))
    }
}

fn main() {}
