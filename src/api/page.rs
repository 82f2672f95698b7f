//! The page at `/`, whose files are part of the binary. It is a client of the API like any other.
//! Its files are public and need no token; its requests do.

use super::jobs::is_known;
use super::problem::Problem;
use super::{get, only};
use crate::settings::HttpSettings;
use actix_web::http::header::{
    self, ETag, EntityTag, Header, HeaderName, HeaderValue, IfNoneMatch,
};
use actix_web::{HttpRequest, HttpResponse, Resource, web};
use rust_embed::Embed;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

#[derive(Embed)]
#[folder = "page/"]
struct Files;

/// The path of all files but the first. It contains a hash of their contents, so browsers fetch
/// them once.
const ASSETS: &str = "/assets/";

/// The path in `index.html` that is replaced by the one with the hash.
const UNNAMED: &str = "assets/dev/";

/// The cache policy of files whose path has the right hash: a year.
const KEPT: &str = "public, max-age=31536000, immutable";

/// The cache policy of everything else: checked with the manager each time.
const NOT_KEPT: &str = "no-cache";

/// The security headers of the page: it loads nothing from elsewhere, runs only scripts that are
/// files of its own, and cannot be framed.
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

/// The content of `index.html`, and the hash in the path of the other files.
static INDEX: LazyLock<(String, String)> = LazyLock::new(|| {
    let mut all = Sha256::new();
    for path in Files::iter() {
        if let Some(file) = Files::get(&path) {
            all.update(path.as_bytes());
            all.update(file.metadata.sha256_hash());
        }
    }
    let name: String = all.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let index = Files::get("index.html").map(|file| file.data.into_owned()).unwrap_or_default();
    let index = String::from_utf8_lossy(&index).replace(UNNAMED, &format!("assets/{name}/"));
    (index, name)
});

/// Returns whether a path belongs to the page. Such a request needs no token, and may come from a
/// link on another site.
pub(super) fn is_page(path: &str, http: &HttpSettings) -> bool {
    http.page && (path == "/" || path.starts_with(ASSETS))
}

pub(super) fn routes(http: &HttpSettings) -> Vec<Resource> {
    if !http.page {
        return Vec::new();
    }
    vec![
        only(vec!["/".to_owned()], "GET, HEAD").route(get().to(index)),
        only(vec![format!("{ASSETS}{{name}}/{{path:.*}}")], "GET, HEAD").route(get().to(asset)),
    ]
}

async fn index(request: HttpRequest) -> HttpResponse {
    let (index, name) = &*INDEX;
    let tag = EntityTag::new_strong(name.clone());
    let known = IfNoneMatch::parse(&request).ok();
    let is_known = is_known(known.as_ref(), &tag);
    let mut answer = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    answer.insert_header(ETag(tag)).insert_header((header::CACHE_CONTROL, NOT_KEPT));
    for header in HEADERS {
        answer.insert_header(header);
    }
    if is_known {
        return answer.finish();
    }
    answer.content_type("text/html; charset=utf-8").body(index.as_str())
}

async fn asset(path: web::Path<(String, String)>) -> Result<HttpResponse, Problem> {
    let (name, path) = path.into_inner();
    let file = Files::get(&path)
        .filter(|_| path != "index.html")
        .ok_or_else(|| Problem::not_found("the page has no such file".to_owned()))?;
    let mut answer = HttpResponse::Ok();
    // Under another hash, as of another version, this version's file is sent, and not cached.
    let kept = if name == INDEX.1 { KEPT } else { NOT_KEPT };
    answer.insert_header((header::CACHE_CONTROL, kept));
    for header in HEADERS {
        answer.insert_header(header);
    }
    Ok(answer.content_type(content_type(&path)).body(file.data.into_owned()))
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        Some(_) | None => "text/plain; charset=utf-8",
    }
}
