package api

const MetadataJSON = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

const MetadataProtobuf = ProtobufType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

const (
	JSONType     = "application/json"
	ProtobufType = "application/vnd.kubernetes.protobuf"
)

const (
	MetadataListJSON     = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	MetadataListProtobuf = ProtobufType + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	TableJSON            = "application/json;as=Table;g=meta.k8s.io;v=v1"
)

const (
	MergePatch     = "application/merge-patch+json"
	JsonPatch      = "application/json-patch+json"
	StrategicPatch = "application/strategic-merge-patch+json"
	ApplyPatch     = "application/apply-patch+yaml"
)
