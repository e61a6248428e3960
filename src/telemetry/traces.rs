//! OpenTelemetry traces, with the cargo feature `otel`: one span for each request, from its arrival
//! to the head of its answer.
//!
//! Without the feature, or without a collector address, nothing is traced and headers pass
//! unchanged.
use http::{Request, Response};

use crate::body::Body;

/// Sender of spans to a collector.
pub struct Traces {
    #[cfg(feature = "otel")]
    provider: opentelemetry_sdk::trace::SdkTracerProvider,
}

#[cfg(not(feature = "otel"))]
mod chosen {
    use super::{Body, Request, Response, Traces};

    /// Returns `None`: without the feature `otel`, nothing is traced.
    pub fn traces() -> anyhow::Result<Option<Traces>> {
        Ok(None)
    }

    /// Serves a request without a span.
    pub fn traced<B, F>(request: Request<B>, serve: impl FnOnce(Request<B>) -> F) -> F
    where
        F: Future<Output = Response<Body>>,
    {
        serve(request)
    }

    impl Traces {
        /// Returns at once, because there are no spans to send.
        pub fn end(self) -> std::future::Ready<()> {
            std::future::ready(())
        }
    }
}

#[cfg(feature = "otel")]
mod chosen {
    use std::sync::OnceLock;

    use anyhow::Context as _;
    use opentelemetry::KeyValue;
    use opentelemetry::propagation::TextMapPropagator;
    use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
    use opentelemetry_http::{HeaderExtractor, HeaderInjector};
    use opentelemetry_otlp::SpanExporter;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use opentelemetry_sdk::trace::span_processor_with_async_runtime::BatchSpanProcessor;
    use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
    use opentelemetry_sdk::{Resource, runtime};

    use super::{Body, Request, Response, Traces};

    /// The length to which a client's texts are cut.
    const MAX_CHARACTERS: usize = 1000;

    static TRACER: OnceLock<SdkTracer> = OnceLock::new();

    fn is_set(variable: &str) -> bool {
        std::env::var_os(variable).is_some_and(|value| !value.is_empty())
    }

    /// Starts to send traces to the collector that the environment names.
    ///
    /// The variables are `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`
    /// (`http://…`). Without either, this returns `None`. It needs a running tokio runtime.
    ///
    /// By default, only requests that the client traces are traced here, whoever the client is.
    /// kube-apiserver heeds only those of `system:masters` and `system:monitoring`.
    /// `OTEL_TRACES_SAMPLER` overrides this.
    /// Source: `apiserver/pkg/endpoints/filters/traces.go` and `apiserver/pkg/server/config.go`.
    pub fn traces() -> anyhow::Result<Option<Traces>> {
        const ENDPOINTS: [&str; 2] = [
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ];
        let Some(variable) = ENDPOINTS.into_iter().find(|variable| is_set(variable)) else {
            return Ok(None);
        };
        let exporter = SpanExporter::builder().with_http().build();
        let exporter = exporter.with_context(|| format!("cannot send traces ({variable})"))?;
        let processor = BatchSpanProcessor::builder(exporter, runtime::Tokio).build();
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if !is_set("OTEL_SERVICE_NAME") {
            resource = resource.with_service_name("watershed");
        }
        let mut provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_resource(resource.build());
        if !is_set("OTEL_TRACES_SAMPLER") {
            provider = provider.with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)));
        }
        let provider = provider.build();
        // The first proxy of a process sets the tracer; later ones share it.
        let _ = TRACER.set(provider.tracer("watershed"));
        tracing::info!("sending traces ({variable})");
        Ok(Some(Traces { provider }))
    }

    /// Serves a request within a span. If the span is recorded, forwarded requests name it as their
    /// parent.
    pub async fn traced<B, F>(
        mut request: Request<B>,
        serve: impl FnOnce(Request<B>) -> F,
    ) -> Response<Body>
    where
        F: Future<Output = Response<Body>>,
    {
        let Some(tracer) = TRACER.get() else {
            return serve(request).await;
        };
        let propagator = TraceContextPropagator::new();
        let parent = propagator.extract(&HeaderExtractor(request.headers()));
        let span = tracer
            .span_builder(request.method().as_str().to_owned())
            .with_kind(SpanKind::Server);
        let context = parent.with_span(span.start_with_context(tracer, &parent));
        let span = context.span();
        if !span.is_recording() {
            return serve(request).await;
        }
        let attribute = |name: &'static str, value: &str| {
            let value: String = value.chars().take(MAX_CHARACTERS).collect();
            span.set_attribute(KeyValue::new(name, value))
        };
        attribute("http.request.method", request.method().as_str());
        attribute("url.path", request.uri().path());
        if let Some(agent) = request
            .headers()
            .get(http::header::USER_AGENT)
            .and_then(|agent| agent.to_str().ok())
        {
            attribute("user_agent.original", agent);
        }
        propagator.inject_context(&context, &mut HeaderInjector(request.headers_mut()));
        let response = serve(request).await;
        span.set_attribute(KeyValue::new(
            "http.response.status_code",
            i64::from(response.status().as_u16()),
        ));
        if let Some(source) = response
            .headers()
            .get(crate::headers::SOURCE)
            .and_then(|source| source.to_str().ok())
        {
            attribute("watershed.source", source);
        }
        if response.status().is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
        response
    }

    impl Traces {
        /// Sends the remaining spans.
        pub async fn end(self) {
            let ended = tokio::task::spawn_blocking(move || self.provider.shutdown()).await;
            if let Ok(Err(error)) = ended {
                tracing::warn!(%error, "the last traces were not sent");
            }
        }
    }
}

pub use chosen::{traced, traces};
