//! Serves the page at `/`, whose files are embedded in the binary. The page is a client of the API
//! like any other: its files need no token, but its requests do.

use super::compression::{GZIP, accepts_gzip, compress_file};
use super::jobs::matches_etag;
use super::page_script::join_modules;
use super::problem::Problem;
use super::route::*;
use actix_web::http::header::{
    self, ETag, EntityTag, Header, HeaderName, HeaderValue, IfNoneMatch,
};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use rust_embed::Embed;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

pub(super) const ROUTES: &[ApiRoute] = &[
    ApiRoute::get("/", || web::to(serve_index)).needing(Access::Page).without_operation(),
    // All files but `index.html`. The path contains a hash of their contents, so browsers may cache
    // them permanently.
    ApiRoute::get("/assets/{name}/{path:.*}", || web::to(serve_asset))
        .needing(Access::Page)
        .without_operation(),
    ApiRoute::unassigned("/assets/{path:.*}", Access::Page),
];

/// The files of the page, which the build embeds.
#[derive(Embed)]
#[folder = "../../page/"]
struct Files;

/// The path of assets in `index.html`, which is replaced by a path with the hash.
const DEV_ASSETS: &str = "assets/dev/";

/// The cache policy of files whose path has the current hash.
const CACHE_FOR_A_YEAR: &str = "public, max-age=31536000, immutable";

/// The cache policy of all other responses: the browser must revalidate before each use.
const NO_CACHE: &str = "no-cache";

/// The security headers of the page: it loads nothing from other origins, runs only scripts that
/// are its own files, and cannot be framed.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html \
             page",
        ),
    ),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CROSS_ORIGIN_OPENER_POLICY, HeaderValue::from_static("same-origin")),
    (header::CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin")),
];

/// How many bytes of the hash the path of assets contains.
const HASH_BYTES: usize = 8;

/// The page's entry file, and the hash of all files.
struct Index {
    /// The content of `index.html`, with the paths that contain the hash.
    html: String,
    /// The first bytes of the hash in hexadecimal digits, as they are in the path of assets.
    hash: String,
}

/// The entry file, made at its first use.
static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut hasher = Sha256::new();
    for path in Files::iter() {
        if let Some(file) = Files::get(&path) {
            hasher.update(path.as_bytes());
            hasher.update(file.metadata.sha256_hash());
        }
    }
    let hash: String =
        hasher.finalize().iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let index = Files::get("index.html").expect("the build embeds the page");
    let index = String::from_utf8_lossy(&index.data);
    Index { html: index.replace(DEV_ASSETS, &format!("assets/{hash}/")), hash }
});

/// Serves `index.html`.
async fn serve_index(request: HttpRequest) -> HttpResponse {
    let Index { html, hash } = &*INDEX;
    let tag = EntityTag::new_strong(hash.clone());
    let if_none_match = IfNoneMatch::parse(&request).ok();
    let is_cached = matches_etag(if_none_match.as_ref(), &tag);
    let mut response = if is_cached { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    response.insert_header(ETag(tag)).insert_header((header::CACHE_CONTROL, NO_CACHE));
    for header in HEADERS {
        response.insert_header(header);
    }
    if is_cached {
        return response.finish();
    }
    response.content_type("text/html; charset=utf-8").body(html.as_str())
}

/// A file of the page, ready to be served.
struct Asset {
    content: Bytes,
    /// The content compressed, if that makes it smaller.
    compressed: Option<Bytes>,
}

/// The module that `index.html` loads. It is served with all modules that it imports.
const MAIN_MODULE: &str = "main.js";

/// The files of the page other than `index.html` by their paths, made at the first use.
static ASSETS: LazyLock<HashMap<String, Asset>> = LazyLock::new(|| {
    let read = |path: &str| Files::get(path).map(|file| file.data);
    let read_text = |path: &str| read(path).map(|data| String::from_utf8_lossy(&data).into_owned());
    let make_asset = |path: Cow<'static, str>| {
        let content = match &*path {
            MAIN_MODULE => join_modules(MAIN_MODULE, &read_text)
                .expect("the build embeds modules that can be joined")
                .into(),
            path => Bytes::from(read(path)?.into_owned()),
        };
        let compressed = compress_file(&content);
        Some((path.into_owned(), Asset { content, compressed }))
    };
    Files::iter().filter(|path| path != "index.html").filter_map(make_asset).collect()
});

/// Serves a file of the page other than `index.html`.
async fn serve_asset(
    request: HttpRequest,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, Problem> {
    let (hash, path) = path.into_inner();
    let Asset { content, compressed } = ASSETS
        .get(&path)
        .ok_or_else(|| Problem::not_found("the page has no such file".to_owned()))?;
    let mut response = HttpResponse::Ok();
    // A request for another version of the page gets this version's file, which is not cached.
    let cache_control = if hash == INDEX.hash { CACHE_FOR_A_YEAR } else { NO_CACHE };
    response.insert_header((header::CACHE_CONTROL, cache_control));
    for header in HEADERS {
        response.insert_header(header);
    }
    response.content_type(content_type(&path));
    let content = match compressed {
        Some(compressed) if accepts_gzip(&request) => {
            response.insert_header((header::VARY, "accept-encoding"));
            response.insert_header((header::CONTENT_ENCODING, GZIP));
            compressed
        }
        Some(_) | None => content,
    };
    Ok(response.body(content.clone()))
}

/// Returns the content type of a file from the extension of its name.
fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        Some(_) | None => "text/plain; charset=utf-8",
    }
}
