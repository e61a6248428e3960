package real

import (
	"context"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestExternalServicesAreReadAsUpstreamReadsThem makes a service external. Events of open watches
// have its internalTrafficPolicy then, and what is read has not.
func TestExternalServicesAreReadAsUpstreamReadsThem(t *testing.T) {
	collection := "/api/v1/namespaces/" + objects.Namespace(t) + "/services"
	compare.AwaitHeld(t, testbed.Proxied, "/api/v1/services")
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: collection, Body: `{"metadata":{"name":"a","labels":{"a":"b"}},"spec":{"ports":[{"port":80}]}}`})
	compare.SettleNewest(t, collection)
	var watches []api.Request
	for _, accept := range []string{"application/json", api.ProtobufType} {
		for _, query := range []string{"", "&labelSelector=a%3Db"} {
			watches = append(watches, api.Request{Path: collection + "?watch=1&resourceVersion=0" + query, Accept: accept})
		}
	}
	compare.Events(t, watches, func() (last string) {
		testbed.Upstream.Must(t, api.Request{
			Method: "PATCH", Path: collection + "/a", ContentType: api.MergePatch,
			Body: `{"spec":{"type":"ExternalName","externalName":"b.test"}}`,
		})
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: collection, Body: `{"metadata":{"name":"last","labels":{"a":"b"}},"spec":{"ports":[{"port":80}]}}`})
		return "last"
	}).RequireSources("snapshot")
	compareReadForms(t, collection, "a")
}

// TestOldClaimsAreReadAsUpstreamReadsThem has a claim from before API servers stored dataSourceRef.
func TestOldClaimsAreReadAsUpstreamReadsThem(t *testing.T) {
	ns := objects.Namespace(t)
	collection := "/api/v1/namespaces/" + ns + "/persistentvolumeclaims"
	made := testbed.Upstream.Must(t, api.Request{
		Method: "POST", Path: collection,
		Body: `{"metadata":{"name":"a"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},` +
			`"dataSource":{"kind":"PersistentVolumeClaim","name":"b"}}}`,
	})
	old := strings.Replace(string(made.Body), `,"dataSourceRef":{"apiGroup":null,"kind":"PersistentVolumeClaim","name":"b"}`, "", 1)
	if old == string(made.Body) {
		t.Fatalf("no reference: %s", old)
	}
	client := require.Value(clientv3.New(clientv3.Config{Endpoints: []string{testbed.Shared.Etcd}}))(t)
	defer client.Close()
	require.Value(client.Put(context.Background(), "/registry/persistentvolumeclaims/"+ns+"/a", old))(t)
	compare.AwaitHeld(t, testbed.Proxied, "/api/v1/persistentvolumeclaims")
	testbed.Upstream.Must(t, api.Request{
		Method: "PATCH", Path: collection + "/a/status", ContentType: api.MergePatch, Body: `{"status":{"phase":"Bound"}}`,
	})
	compareReadForms(t, collection, "a")
}

// compareReadForms compares what is read after the last event: gets, lists, and watches that begin
// with the state.
func compareReadForms(t *testing.T, collection, name string) {
	t.Helper()
	compare.SettleNewest(t, collection)
	var requests []api.Request
	for _, accept := range []string{"application/json", api.ProtobufType, tableOfKubectl} {
		for _, path := range []string{"?resourceVersion=0", "", "/" + name + "?resourceVersion=0", "?watch=1&timeoutSeconds=1&resourceVersion=0"} {
			requests = append(requests, api.Request{Path: collection + path, Accept: accept})
		}
	}
	compare.CompareAll(t, requests).RequireSources("snapshot", "linearizable")
}
