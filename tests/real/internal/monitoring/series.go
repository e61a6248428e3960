package monitoring

import (
	"fmt"
	"slices"
)

// Constant and Rising return series of two hours.
func Constant(value float64) []float64 { return slices.Repeat([]float64{value}, 121) }

func Rising(perMinute float64) (values []float64) {
	for minute := range 121 {
		values = append(values, perMinute*float64(minute))
	}
	return values
}

// Named returns a series with a name and labels, like name{a="b"}. It has the labels that the
// Prometheus operator adds to targets of a ServiceMonitor, too: an expression whose two sides keep
// different ones of them has no result.
func Named(values []float64, name string, labels ...string) Series {
	all := map[string]string{
		"__name__": name, "job": "watershed", "namespace": "watershed-system", "pod": "a", "instance": "10.0.0.1:6480",
		"container": "watershed", "endpoint": "admin", "service": "watershed-metrics",
	}
	for i := 0; i < len(labels); i += 2 {
		all[labels[i]] = labels[i+1]
	}
	return Series{all, values}
}

// buckets returns the series of a histogram of seconds, with so many fast and slow observations a minute.
func buckets(name string, fast, slow float64, labels ...string) (all []Series) {
	for _, bucket := range [][2]any{{"0.1", fast}, {"1", fast}, {"2.5", fast + slow}, {"+Inf", fast + slow}} {
		all = append(all, Named(Rising(bucket[1].(float64)), name+"_bucket", append([]string{"le", bucket[0].(string)}, labels...)...))
	}
	return append(all, Named(Rising(fast+slow), name+"_count", labels...))
}

// Healthy returns the series of a busy proxy with which nothing is wrong.
func Healthy() []Series {
	restarted := slices.Concat(slices.Repeat([]float64{1000}, 90), slices.Repeat([]float64{2000}, 31))
	all := []Series{
		Named(Constant(1), "up"),
		Named(Constant(1), "watershed_ready"),
		Named(Constant(1), "watershed_scope_following", "resource", "pods"),
		Named(Constant(1), "watershed_scope_ready", "resource", "pods"),
		Named(Constant(1), "watershed_scopes", "resource", "pods"),
		Named(Constant(0), "watershed_scopes_stale", "resource", "pods"),
		Named(Constant(0), "watershed_scope_staleness_seconds", "resource", "pods"),
		Named(Rising(0.2), "watershed_self_checks_total", "resource", "pods", "result", "same"),
		Named(Rising(0.2), "watershed_self_checks_total", "resource", "pods", "result", "expired"),
		Named(Constant(0), "watershed_verified_answers_total", "resource", "pods", "result", "different"),
		Named(Rising(6), "watershed_verified_answers_total", "resource", "pods", "result", "same"),
		Named(Constant(1), "watershed_upstream_lists_total", "resource", "pods"),
		Named(Constant(0), "watershed_scope_relists_total", "resource", "pods"),
		Named(Constant(0), "watershed_upstream_rollbacks_total", "evidence", "version"),
		Named(Constant(1), "watershed_rbac_following"),
		Named(Rising(6000), "watershed_requests_total", "verb", "list", "source", "snapshot", "code", "200"),
		Named(Rising(600), "watershed_requests_total", "verb", "list", "source", "forward", "reason", "unproven", "code", "200"),
		Named(Rising(60000), "watershed_requests_total", "verb", "list", "source", "forward", "reason", "policy", "code", "200"),
		Named(Rising(60000), "watershed_requests_total", "verb", "create", "source", "forward", "reason", "not-a-read", "code", "201"),
		Named(Rising(10), "watershed_requests_total", "verb", "create", "source", "forward", "reason", "not-a-read", "code", "500"),
		Named(Rising(60), "watershed_access_reviews_total", "kind", "tokenreview", "result", "answered"),
		Named(Rising(600), "watershed_upstream_requests_total", "purpose", "internal", "code", "200"),
		Named(Rising(6000), "watershed_upstream_requests_total", "purpose", "forward", "code", "401"),
		Named(Constant(0), "watershed_upstream_requests_unanswered_total", "purpose", "list", "reason", "connect"),
		Named(Rising(600), "watershed_upstream_requests_unanswered_total", "purpose", "forward", "reason", "connect"),
		Named(Rising(600), "watershed_upstream_requests_unanswered_total", "purpose", "internal", "reason", "abandoned"),
		Named(Rising(60), "watershed_requests_aborted_total", "verb", "list", "resource", "pods"),
		Named(Constant(0), "watershed_scopes_lost_total", "resource", "pods", "reason", "forbidden"),
		Named(Rising(600), "watershed_consistent_reads_total", "outcome", "validated"),
		Named(Rising(6), "watershed_consistent_reads_total", "outcome", "failed"),
		Named(Rising(60), "watershed_watches_ended_total", "reason", "deadline"),
		Named(Rising(60), "watershed_watches_ended_total", "reason", "client"),
		Named(Rising(60), "watershed_connections_terminated_total", "listener", "proxy", "reason", "idle"),
		Named(Constant(0), "watershed_connections_rejected_total", "listener", "proxy", "reason", "per-address"),
		Named(Constant(800), "watershed_connections", "listener", "proxy"),
		Named(Constant(1000), "watershed_connections_limit", "listener", "proxy"),
		Named(Constant(1000), "process_open_fds"),
		Named(Constant(20000), "process_max_fds"),
		Named(Constant(1<<30), "process_resident_memory_bytes"),
		Named(Rising(30), "process_cpu_seconds_total"),
		Named(Constant(400<<20), "watershed_scope_object_bytes", "resource", "pods"),
		Named(Constant(100<<20), "watershed_scope_window_bytes", "resource", "pods"),
		Named(Constant(4<<30), "watershed_memory_limit_bytes"),
		Named(Constant(600<<20), "watershed_memory_bytes", "class", "objects"),
		Named(Constant(150<<20), "watershed_memory_bytes", "class", "history"),
		Named(Constant(0), "watershed_loops_refused_total", "reason", "loop"),
		Named(Constant(0), "watershed_upstream_credential_reload_failures_total"),
		Named(Rising(1), "watershed_checkpoint_writes_total", "result", "written"),
		Named(Constant(0), "watershed_memory_pressure_step"),
		Named(restarted, "process_start_time_seconds"),
		Named(Constant(0), "watershed_audit_events_dropped_total", "sink", "log"),
		Named(Rising(60<<20), "watershed_response_bytes_total", "source", "snapshot"),
		Named(Rising(60), "watershed_response_bytes_total", "source", "forward"),
		Named(Rising(1<<20), "watershed_upstream_received_bytes_total", "purpose", "watch"),
		Named(Rising(600<<20), "watershed_upstream_received_bytes_total", "purpose", "forward"),
	}
	all = append(all, certificate("proxy", 60, 40)...)
	all = append(all, ownCertificate("a", 0.5, 0.5)...)
	all = append(all, buckets("watershed_consistent_read_wait_duration_seconds", 600, 0, "outcome", "validated")...)
	return append(all, buckets("watershed_request_duration_seconds", 600, 0, "verb", "list", "source", "snapshot")...)
}

// certificate returns the series of a serving certificate that is so many days old, and has so many left, at the time of
// the alerts.
func certificate(listener string, age, left float64) []Series {
	const now, day = 1e6, 24 * 3600
	return []Series{
		Named(Constant(now-age*day), "watershed_serving_certificate_start_timestamp_seconds", "listener", listener),
		Named(Constant(now+left*day), "watershed_serving_certificate_expiration_timestamp_seconds", "listener", listener),
	}
}

// ownCertificate returns the series of the client certificate of one proxy.
func ownCertificate(pod string, age, left float64) []Series {
	const now, day = 1e6, 24 * 3600
	labels := []string{"pod", pod, "instance", pod + ":6480"}
	return []Series{
		Named(Constant(now-age*day), "watershed_upstream_certificate_start_timestamp_seconds", labels...),
		Named(Constant(now+left*day), "watershed_upstream_certificate_expiration_timestamp_seconds", labels...),
	}
}

// reviews returns 60 reviews a minute that were answered, and others that failed.
func reviews(failed float64) []Series {
	return []Series{
		Named(Rising(60), "watershed_access_reviews_total", "kind", "tokenreview", "result", "answered"),
		Named(Rising(failed), "watershed_access_reviews_total", "kind", "tokenreview", "result", "unavailable"),
		Named(Rising(600), "watershed_access_reviews_total", "kind", "subjectaccessreview", "result", "answered"),
	}
}

// quietReviews returns a series of reviews for each of so many proxies that have few.
func quietReviews(values []float64, proxies int, result string) (all []Series) {
	for i := range proxies {
		pod := fmt.Sprint("quiet-", i)
		all = append(all, Named(values, "watershed_access_reviews_total", "kind", "selfsubjectreview", "result", result,
			"pod", pod, "instance", pod+":6480"))
	}
	return all
}

// steps returns a series of two hours that has another value for its last minutes.
func steps(before, after float64, minutes int) []float64 {
	return slices.Concat(slices.Repeat([]float64{before}, 121-minutes), slices.Repeat([]float64{after}, minutes))
}

// regularly returns a series that is 1 for one minute of so many, and else 0. It ends with 0.
func regularly(minutes int) (values []float64) {
	for minute := range 121 {
		values = append(values, map[bool]float64{true: 1}[minute%minutes == minutes/2 && minute < 120])
	}
	return values
}

// Others returns a metric of nine further proxies, of which so many have another value.
func Others(name string, usual, different float64, count int, labels ...string) (all []Series) {
	for i := range 9 {
		value := usual
		if i < count {
			value = different
		}
		pod := string(rune('b' + i))
		all = append(all, Named(Constant(value), name, append([]string{"pod", pod, "instance", pod + ":6480"}, labels...)...))
	}
	return all
}

// ofQuietProxy returns a series of a proxy that has few requests.
func ofQuietProxy(values []float64, name string, labels ...string) Series {
	return Named(values, name, append([]string{"pod", "quiet", "instance", "quiet:6480"}, labels...)...)
}

// scope returns the gauges of a series of scopes.
func scope(scopes, ready, following, staleness, stale []float64) []Series {
	labels := []string{"resource", "secrets"}
	return []Series{
		Named(scopes, "watershed_scopes", labels...),
		Named(ready, "watershed_scope_ready", labels...),
		Named(following, "watershed_scope_following", labels...),
		Named(staleness, "watershed_scope_staleness_seconds", labels...),
		Named(stale, "watershed_scopes_stale", labels...),
	}
}

// Case is a state that shall fire some alerts and no others.
type Case struct {
	Series []Series
	Fires  []string
	// Unready is the number of series that the dashboard shows as not answered from memory, and
	// Unfollowed as not followed.
	Unready, Unfollowed float64
}

// Cases holds series that come to the healthy ones.
var Cases = map[string]Case{
	"a type whose list fails": {
		scope(Constant(1), Constant(0), Constant(0), Constant(0), Constant(0)), []string{"WatershedScopeNotReady"}, 1, 1,
	},
	// Each request opens a scope whose list fails, and that is closed again.
	"a type whose list fails, and that is asked for at times": {
		scope(regularly(7), Constant(0), Constant(0), Constant(0), Constant(0)), []string{"WatershedScopeNotReady"}, 0, 0,
	},
	// Each request opens a scope that upstream refuses, and that is closed again.
	"a type that may not be listed, and is asked for at times": {
		append(scope(regularly(7), Constant(0), Constant(0), Constant(0), Constant(0)),
			Named(Rising(1.0/7), "watershed_scopes_stopped_total", "resource", "secrets", "reason", "forbidden")), nil, 0, 0,
	},
	"a type whose list fails, and another one that may not be listed": {
		append(scope(Constant(1), Constant(0), Constant(0), Constant(0), Constant(0)),
			Named(Rising(1.0/7), "watershed_scopes_stopped_total", "resource", "crontabs", "reason", "forbidden")), []string{"WatershedScopeNotReady"}, 1, 1,
	},
	"a scope that was closed": {
		scope(Constant(0), Constant(0), Constant(0), Constant(0), Constant(0)), nil, 0, 0,
	},
	"a scope that was closed lately": {
		scope(steps(1, 0, 5), steps(1, 0, 5), steps(1, 0, 5), Constant(0), Constant(0)), nil, 0, 0,
	},
	"a scope that was refused, and is closed for long": {
		scope(steps(1, 0, 30), Constant(0), Constant(0), Constant(0), Constant(0)), nil, 0, 0,
	},
	"a scope that is listed again after two seconds without upstream": {
		scope(Constant(1), steps(1, 0, 1), steps(1, 0, 1), steps(0, 2, 1), Constant(0)), nil, 1, 1,
	},
	"one on-demand scope of many is stale": {
		scope(Constant(5), steps(1, 0, 10), steps(1, 0, 10), steps(0, 600, 10), steps(0, 1, 10)),
		[]string{"WatershedNotFollowing", "WatershedStale"}, 1, 1,
	},
	"on-demand scopes that are opened again and again": {
		Series: []Series{Named(Rising(2), "watershed_upstream_lists_total", "resource", "secrets"), Named(Constant(0), "watershed_scope_relists_total", "resource", "secrets")},
	},
	"the proxy's credentials are not accepted": {
		Series: []Series{Named(Rising(6), "watershed_upstream_requests_total", "purpose", "list", "code", "401")},
		Fires:  []string{"WatershedCredentialsRefused"},
	},
	"changed credentials cannot be read": {
		Series: []Series{ofQuietProxy(Rising(6), "watershed_upstream_credential_reload_failures_total")},
		Fires:  []string{"WatershedCredentialsNotReloaded"},
	},
	"changed credentials could not be read at once": {
		Series: []Series{ofQuietProxy(steps(0, 1, 15), "watershed_upstream_credential_reload_failures_total")},
	},
	"a right was taken away": {
		Series: []Series{Named(steps(0, 1, 5), "watershed_scopes_lost_total", "resource", "secrets", "reason", "forbidden")},
		Fires:  []string{"WatershedTypesLost"},
	},
	"the API server has too much to do for the proxy": {
		Series: []Series{Named(Rising(60), "watershed_upstream_requests_total", "purpose", "list", "code", "429")},
		Fires:  []string{"WatershedOwnRequestsFail"},
	},
	"the API server hangs": {
		Series: []Series{Named(Rising(60), "watershed_upstream_requests_unanswered_total", "purpose", "watch", "reason", "late")},
		Fires:  []string{"WatershedOwnRequestsFail"},
	},
	"many clients give up": {
		Series: []Series{Named(Rising(30000), "watershed_requests_aborted_total", "verb", "list", "resource", "leases")},
		Fires:  []string{"WatershedRequestsAborted"},
	},
	"the proxy's own certificate of a year ends in five days": {
		Series: ownCertificate("b", 360, 5), Fires: []string{"WatershedOwnCertificateEnds"},
	},
	"one proxy of ten is down": {
		Series: Others("up", 1, 0, 1), Fires: []string{"WatershedInstanceDown"},
	},
	"three proxies of ten are down": {
		Series: Others("up", 1, 0, 3), Fires: []string{"WatershedDown", "WatershedInstanceDown"},
	},
	"one proxy of ten is not ready": {
		Series: slices.Concat(Others("up", 1, 1, 0), Others("watershed_ready", 1, 0, 1)),
	},
	"three proxies of ten are not ready": {
		Series: slices.Concat(Others("up", 1, 1, 0), Others("watershed_ready", 1, 0, 3)), Fires: []string{"WatershedNotReady"},
	},
	"one proxy of ten has a type that is too old": {
		Series: slices.Concat(Others("up", 1, 1, 0), Others("watershed_scopes_stale", 0, 1, 1, "resource", "pods"),
			Others("watershed_scope_staleness_seconds", 0, 600, 1, "resource", "pods")),
		Fires: []string{"WatershedNotFollowing"},
	},
	"three proxies of ten have a type that is too old": {
		Series: slices.Concat(Others("up", 1, 1, 0), Others("watershed_scopes_stale", 0, 1, 3, "resource", "pods"),
			Others("watershed_scope_staleness_seconds", 0, 600, 3, "resource", "pods")),
		Fires: []string{"WatershedNotFollowing", "WatershedStale"},
	},
	"small proxies whose memory is mostly uncounted": {
		Series: slices.Concat(Others("process_resident_memory_bytes", 40<<20, 190<<20, 1), Others("watershed_memory_bytes", 10<<20, 10<<20, 0, "class", "objects"),
			Others("watershed_memory_limit_bytes", 205<<20, 205<<20, 0)),
		Fires: []string{"WatershedMemoryGrowing"},
	},
	"proxies without a memory limit": {
		Series: slices.Concat(Others("process_resident_memory_bytes", 1<<30, 12<<30, 1), Others("watershed_memory_bytes", 512<<20, 512<<20, 0, "class", "objects"),
			Others("watershed_memory_limit_bytes", 0, 0, 0)),
	},
	// A type that is refused for its size leaves memory free.
	"a type that does not fit into memory is forwarded": {
		Series: []Series{Named(Rising(0.2), "watershed_requests_total", "verb", "watch", "source", "forward", "reason", "budget", "code", "200")},
		Fires:  []string{"WatershedMemoryShort"},
	},
	"memory was short for a moment": {
		Series: []Series{Named(steps(0, 60, 5), "watershed_requests_total", "verb", "list", "source", "forward", "reason", "budget", "code", "200")},
	},
	"a proxy on a node forwards what the preset leaves out": {
		Series: []Series{Named(Rising(600000), "watershed_requests_total", "verb", "list", "source", "forward", "reason", "not-covered", "code", "200")},
	},
	"another process writes checkpoints to the folder": {
		Series: []Series{Named(Rising(1), "watershed_checkpoint_writes_total", "result", "in-use")},
	},
	"a certificate that ends in a week and a half": {
		Series: certificate("admin", 80, 10),
		Fires:  []string{"WatershedCertificateNotRenewed"},
	},
	"a certificate of which an older proxy does not tell the start": {
		Series: certificate("admin", 80, 10)[1:],
		Fires:  []string{"WatershedCertificateNotRenewed"},
	},
	"a certificate that is renewed every day": {
		Series: certificate("admin", 0.5, 0.5),
	},
	"a certificate that should have been renewed half a day ago": {
		Series: certificate("admin", 5.5, 1.5),
		Fires:  []string{"WatershedCertificateNotRenewed"},
	},
	"the first comparison of a type differed": {
		Series: []Series{Named(Constant(1)[:30], "watershed_verified_answers_total", "resource", "secrets", "result", "different")},
		Fires:  []string{"WatershedAnswersDiffer"},
	},
	"a comparison differed long ago": {
		Series: []Series{Named(Constant(1), "watershed_verified_answers_total", "resource", "secrets", "result", "different")},
	},
	"two reviews of six hundred failed": {
		Series: []Series{Named(steps(0, 2, 5), "watershed_access_reviews_total", "kind", "tokenreview", "result", "unavailable")},
	},
	"the proxy may not ask for rules": {
		Series: []Series{Named(Rising(1), "watershed_access_reviews_total", "kind", "selfsubjectrulesreview", "result", "refused")},
	},
	"few reviews, of which two failed": {
		Series: []Series{
			Named(Rising(1), "watershed_access_reviews_total", "kind", "selfsubjectreview", "result", "answered"),
			Named(steps(0, 2, 5), "watershed_access_reviews_total", "kind", "selfsubjectreview", "result", "unavailable"),
		},
	},
	"two of ten proxies had two failed reviews each": {
		Series: slices.Concat(quietReviews(Rising(0.5), 10, "answered"), quietReviews(steps(0, 2, 5), 2, "unavailable")),
	},
	"reviews of many proxies fail, each of which has few": {
		Series: slices.Concat(quietReviews(Rising(0.5), 10, "answered"), quietReviews(Rising(0.2), 10, "unavailable")),
		Fires:  []string{"WatershedReviewsFailing"},
	},
	"few forwarded requests, of which three failed": {
		Series: []Series{
			ofQuietProxy(Rising(2), "watershed_requests_total", "verb", "get", "source", "forward", "code", "200"),
			ofQuietProxy(steps(0, 3, 5), "watershed_requests_total", "verb", "get", "source", "forward", "code", "503"),
		},
	},
	"few forwarded requests, of which most fail": {
		Series: []Series{
			ofQuietProxy(Rising(1), "watershed_requests_total", "verb", "get", "source", "forward", "code", "200"),
			ofQuietProxy(Rising(2), "watershed_requests_total", "verb", "get", "source", "forward", "code", "503"),
		},
		Fires: []string{"WatershedUpstreamErrors"},
	},
	"few consistent reads, of which one in ten waits": {
		Series: buckets("watershed_consistent_read_wait_duration_seconds", 1.8, 0.2, "outcome", "caught-up", "pod", "quiet", "instance", "quiet:6480"),
	},
	"five consistent reads a minute, of which one in ten waits": {
		Series: buckets("watershed_consistent_read_wait_duration_seconds", 4.5, 0.5, "outcome", "caught-up", "pod", "quiet", "instance", "quiet:6480"),
		Fires:  []string{"WatershedConsistentReadsSlow"},
	},
	"few answers from memory, of which one in ten is slow": {
		Series: buckets("watershed_request_duration_seconds", 1.8, 0.2, "verb", "list", "source", "snapshot", "pod", "quiet", "instance", "quiet:6480"),
	},
	"five answers from memory a minute, of which one in ten is slow": {
		Series: buckets("watershed_request_duration_seconds", 4.5, 0.5, "verb", "list", "source", "snapshot", "pod", "quiet", "instance", "quiet:6480"),
		Fires:  []string{"WatershedSlowAnswers"},
	},
	"all reviews of one kind fail, and there are few": {
		Series: []Series{Named(Rising(1), "watershed_access_reviews_total", "kind", "selfsubjectreview", "result", "refused")},
		Fires:  []string{"WatershedReviewsFailing"},
	},
}

// Causes holds the cause of each alert: series that replace the healthy ones of the same name and
// labels.
var Causes = map[string][]Series{
	"WatershedCredentialsRefused":     {Named(Rising(6), "watershed_upstream_requests_total", "purpose", "list", "code", "401")},
	"WatershedCredentialsNotReloaded": {Named(Rising(6), "watershed_upstream_credential_reload_failures_total")},
	"WatershedTypesLost":              {Named(steps(0, 1, 5), "watershed_scopes_lost_total", "resource", "pods", "reason", "forbidden")},
	"WatershedOwnRequestsFail": {
		Named(Rising(60), "watershed_upstream_requests_total", "purpose", "list", "code", "200"),
		Named(Rising(60), "watershed_upstream_requests_total", "purpose", "list", "code", "503"),
	},
	"WatershedRequestsAborted":        {Named(Rising(30000), "watershed_requests_aborted_total", "verb", "list", "resource", "pods")},
	"WatershedOwnCertificateEnds":     ownCertificate("a", 360, 5),
	"WatershedDown":                   {Named(Constant(0), "up")},
	"WatershedNotReady":               {Named(Constant(0), "watershed_ready")},
	"WatershedInstanceDown":           {Named(Constant(0), "up")},
	"WatershedAbsent":                 {Named(Constant(1), "up", "job", "another")},
	"WatershedNotFollowing":           {Named(Constant(90), "watershed_scope_staleness_seconds", "resource", "pods")},
	"WatershedStale":                  {Named(Constant(1), "watershed_scopes_stale", "resource", "pods"), Named(Constant(900), "watershed_scope_staleness_seconds", "resource", "pods")},
	"WatershedMemoryDiffers":          {Named(Rising(0.1), "watershed_self_checks_total", "resource", "pods", "result", "objects")},
	"WatershedAnswersDiffer":          {Named(Rising(0.1), "watershed_verified_answers_total", "resource", "pods", "result", "different")},
	"WatershedScopeNotReady":          {Named(Constant(0), "watershed_scope_ready", "resource", "pods")},
	"WatershedRelisting":              {Named(Rising(0.5), "watershed_scope_relists_total", "resource", "pods")},
	"WatershedUpstreamRolledBack":     {Named(Rising(1), "watershed_upstream_rollbacks_total", "evidence", "version")},
	"WatershedUpstreamErrors":         {Named(Rising(600), "watershed_requests_total", "verb", "get", "source", "forward", "reason", "consistent-read", "code", "503")},
	"WatershedReviewsFailing":         reviews(6),
	"WatershedRBACNotFollowed":        {Named(Constant(0), "watershed_rbac_following")},
	"WatershedForwardingMuch":         {Named(Rising(600), "watershed_requests_total", "verb", "list", "source", "forward", "reason", "selector", "code", "200")},
	"WatershedConsistentReadsSlow":    buckets("watershed_consistent_read_wait_duration_seconds", 600, 60, "outcome", "caught-up"),
	"WatershedConsistentReadsFailing": {Named(Rising(60), "watershed_consistent_reads_total", "outcome", "failed")},
	"WatershedSlowAnswers":            buckets("watershed_request_duration_seconds", 600, 60, "verb", "list", "source", "snapshot"),
	"WatershedWatchesBroken":          {Named(Rising(60), "watershed_watches_ended_total", "reason", "expired")},
	"WatershedClientsStalled":         {Named(Rising(30), "watershed_responses_terminated_total", "reason", "write-stall")},
	"WatershedConnectionsFull": {
		Named(Constant(990), "watershed_connections", "listener", "proxy"),
		Named(Constant(1000), "watershed_connections_limit", "listener", "proxy"),
	},
	"WatershedConnectionsRefused":    {Named(Rising(6), "watershed_connections_rejected_total", "listener", "proxy", "reason", "per-address")},
	"WatershedUsersLimited":          {Named(Rising(60), "watershed_requests_limited_total", "reason", "rate")},
	"WatershedFileDescriptorsLow":    {Named(Constant(19000), "process_open_fds")},
	"WatershedMemoryShort":           {Named(Constant(4), "watershed_memory_pressure_step")},
	"WatershedMemoryGrowing":         {Named(Constant(12<<30), "process_resident_memory_bytes")},
	"WatershedRestarting":            {Named(Rising(1), "process_start_time_seconds")},
	"WatershedLoopsRefused":          {Named(Rising(1), "watershed_loops_refused_total", "reason", "loop")},
	"WatershedNodePodsNotFollowed":   {Named(Constant(0), "watershed_node_pods_following")},
	"WatershedCheckpointsFailing":    {Named(Rising(1), "watershed_checkpoint_writes_total", "result", "failed")},
	"WatershedCertificateEnds":       certificate("proxy", 90, 0.1),
	"WatershedCertificateNotRenewed": certificate("proxy", 80, 10),
	"WatershedSavesNothing":          {Named(Rising(120<<20), "watershed_upstream_received_bytes_total", "purpose", "watch")},
	"WatershedAuditLogNotRotated":    {Named(Rising(1), "watershed_audit_log_rotation_failures_total")},
	"WatershedAuditEventsLost":       {Named(Rising(1), "watershed_audit_events_dropped_total", "sink", "log")},
}
