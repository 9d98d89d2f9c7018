//! From `.proto` files to descriptors.

use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;
use prost_types::FileDescriptorSet;
use protox::prost_reflect::DescriptorPool;

use crate::error::BuildError;

/// Parses the files with `protoc` if the environment asks for it, else without.
pub(crate) fn descriptors(
    protos: &[PathBuf],
    includes: &[PathBuf],
    protoc_args: &[String],
) -> Result<FileDescriptorSet, BuildError> {
    for proto in protos {
        refuse_editions(proto)?;
    }
    match std::env::var_os("PROTOC") {
        Some(protoc) => run_protoc(Path::new(&protoc), protos, includes, protoc_args),
        None => parse(protos, includes),
    }
}

fn parse(protos: &[PathBuf], includes: &[PathBuf]) -> Result<FileDescriptorSet, BuildError> {
    let mut compiler = protox::Compiler::new(includes).map_err(|error| readable(&error))?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(protos).map_err(|error| readable(&error))?;
    Ok(compiler.file_descriptor_set())
}

/// The parser's error with the place where it is, as compilers write it.
fn readable(error: &protox::Error) -> BuildError {
    // The parser's Debug form is `file:line:column: message` when it knows the place.
    let detailed = format!("{error:?}");
    let message = error.to_string();
    let place = detailed
        .strip_suffix(&message)
        .and_then(|place| place.strip_suffix(": "))
        .map(str::to_owned)
        .or_else(|| error.file().map(str::to_owned))
        .unwrap_or_else(|| "protobuf".to_owned());
    BuildError::Proto { place, message }
}

fn run_protoc(
    protoc: &Path,
    protos: &[PathBuf],
    includes: &[PathBuf],
    args: &[String],
) -> Result<FileDescriptorSet, BuildError> {
    let failed = |message: String| BuildError::Protoc { protoc: protoc.display().to_string(), message };
    let output = std::env::temp_dir().join(format!("ringmail-build-{}-{:p}.bin", std::process::id(), protos));
    let mut command = Command::new(protoc);
    command.arg("--include_imports").arg("--include_source_info").arg("-o").arg(&output);
    for include in includes {
        command.arg("-I").arg(include);
    }
    let run = command.args(args).args(protos).output().map_err(|error| failed(error.to_string()))?;
    if !run.status.success() {
        return Err(failed(String::from_utf8_lossy(&run.stderr).trim().to_owned()));
    }
    let bytes = std::fs::read(&output).map_err(|source| BuildError::File { path: output.clone(), source });
    let _ = std::fs::remove_file(&output);
    FileDescriptorSet::decode(bytes?.as_slice()).map_err(|error| failed(error.to_string()))
}

/// Finds `edition = "…";` where a file's syntax is declared. The parsers' own errors say less.
fn refuse_editions(proto: &Path) -> Result<(), BuildError> {
    // A file that cannot be read is reported by the parser.
    let Ok(text) = std::fs::read_to_string(proto) else { return Ok(()) };
    match declared_edition(&text) {
        Some(edition) => Err(BuildError::Editions { file: proto.display().to_string(), edition }),
        None => Ok(()),
    }
}

fn declared_edition(text: &str) -> Option<String> {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    loop {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n')?.1.trim_start();
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/")?.1.trim_start();
        } else {
            break;
        }
    }
    let value = rest.strip_prefix("edition")?.trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    value[1..].split(quote).next().map(str::to_owned)
}

/// Checks what the code generator would panic on, for descriptors from any source.
pub(crate) fn check(descriptors: &FileDescriptorSet) -> Result<(), BuildError> {
    for file in &descriptors.file {
        match file.syntax() {
            "" | "proto2" | "proto3" => {}
            "editions" => {
                return Err(BuildError::Editions {
                    file: file.name().to_owned(),
                    edition: "unknown".to_owned(),
                });
            }
            syntax => {
                return Err(BuildError::Proto {
                    place: file.name().to_owned(),
                    message: format!("the syntax {syntax:?} is not supported; write syntax = \"proto3\";"),
                });
            }
        }
    }
    // Resolves every type name: the generator takes for granted that this works.
    DescriptorPool::from_file_descriptor_set(descriptors.clone())
        .map(|_| ())
        .map_err(|error| BuildError::Proto { place: "descriptor set".to_owned(), message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::declared_edition;

    #[test]
    fn editions_are_found_behind_comments_only_where_they_are_declared() {
        assert_eq!(declared_edition("edition = \"2023\";").as_deref(), Some("2023"));
        assert_eq!(declared_edition("// a\n/* b */ edition='2024';").as_deref(), Some("2024"));
        assert_eq!(declared_edition("syntax = \"proto3\"; message edition {}"), None);
        assert_eq!(declared_edition("/* edition = \"2023\""), None);
        assert_eq!(declared_edition(""), None);
    }
}
