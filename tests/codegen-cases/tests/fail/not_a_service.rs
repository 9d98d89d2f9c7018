//! The implementation is added instead of the server made of it.

use codegen_cases::all::{Beat, root_server::Root};
use ringmail::{Request, Response, Status};

struct Heart;

#[ringmail::async_trait]
impl Root for Heart {
    async fn ping(&self, request: Request<Beat>) -> Result<Response<Beat>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

fn main() {
    let _ = ringmail::Server::builder().add_service(Heart);
}
