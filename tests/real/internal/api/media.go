package api

// MetadataJSON is the media type of an object's metadata in JSON.
const MetadataJSON = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// MetadataProtobuf is the media type of an object's metadata in protobuf.
const MetadataProtobuf = ProtobufType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// The encodings of objects.
const (
	JSONType     = "application/json"
	ProtobufType = "application/vnd.kubernetes.protobuf"
)

// Further representations of lists.
const (
	MetadataListJSON     = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	MetadataListProtobuf = ProtobufType + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	TableJSON            = "application/json;as=Table;g=meta.k8s.io;v=v1"
)

// The types of patches.
const (
	MergePatch     = "application/merge-patch+json"
	JSONPatch      = "application/json-patch+json"
	StrategicPatch = "application/strategic-merge-patch+json"
	ApplyPatch     = "application/apply-patch+yaml"
)
