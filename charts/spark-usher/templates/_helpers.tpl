{{- define "spark-usher.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "spark-usher.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- $name := include "spark-usher.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "spark-usher.selectorLabels" -}}
app.kubernetes.io/name: {{ include "spark-usher.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* The namespace of the release's objects. */}}
{{- define "spark-usher.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{/* The entries of several maps, of which the later take precedence. */}}
{{- define "spark-usher.entries" -}}
{{- $all := dict }}
{{- range $map := . }}
{{- range $key, $value := $map }}
{{- $_ := set $all $key $value }}
{{- end }}
{{- end }}
{{- with $all }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of an object or of the pods. .labels take precedence over commonLabels, and selector labels over both. */}}
{{- define "spark-usher.labels" -}}
{{- $standard := dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- include "spark-usher.entries" (list $standard .root.Values.commonLabels .labels (include "spark-usher.selectorLabels" .root | fromYaml)) }}
{{- end }}

{{/*
Metadata of an object. .name defaults to the full name, and .namespace to that of the release; .scope is Cluster for objects without
a namespace. .labels and .annotations take precedence over commonLabels and commonAnnotations.
*/}}
{{- define "spark-usher.metadata" -}}
name: {{ default (include "spark-usher.fullname" .root) .name }}
{{- if ne .scope "Cluster" }}
namespace: {{ default (include "spark-usher.namespace" .root) .namespace | quote }}
{{- end }}
labels:
  {{- include "spark-usher.labels" . | nindent 2 }}
{{- with include "spark-usher.entries" (list .root.Values.commonAnnotations .annotations) }}
annotations:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "spark-usher.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "spark-usher.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "spark-usher.image" -}}
{{- $repository := required "image.repository is empty: expected the repository of an image that you built and pushed, because no release of spark-usher is published yet. Build it from the Dockerfile with docker build -t registry.example.com/platform/spark-usher:0.1.0 ., push it, and set image.registry=registry.example.com, image.repository=platform/spark-usher and image.tag=0.1.0" .Values.image.repository }}
{{- $global := default dict .Values.global }}
{{- with default .Values.image.registry $global.imageRegistry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository }}
{{- end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* Secrets for pulling the image: those of the release and of the parent chart, as names or references. */}}
{{- define "spark-usher.imagePullSecrets" -}}
{{- $references := list }}
{{- $global := default dict .Values.global }}
{{- range concat (default list .Values.imagePullSecrets) (default list $global.imagePullSecrets) }}
{{- $references = append $references (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- with uniq $references -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whether the cluster is OpenShift. */}}
{{- define "spark-usher.openshift" -}}
{{- if .Capabilities.APIVersions.Has "config.openshift.io/v1" }}true{{ end }}
{{- end }}

{{/* A security context (.context). On OpenShift, the security context constraints assign the ids, and reject others. */}}
{{- define "spark-usher.securityContext" -}}
{{- $assigned := .root.Values.assignedIds }}
{{- if or (eq $assigned "enabled") (and (eq $assigned "auto") (include "spark-usher.openshift" .root)) }}
{{- toYaml (omit (default dict .context) "runAsUser" "runAsGroup" "fsGroup") }}
{{- else }}
{{- toYaml (default dict .context) }}
{{- end }}
{{- end }}

{{- define "spark-usher.secretName" -}}
{{- default (printf "%s-tls" (include "spark-usher.fullname" .)) .Values.certificates.secretName }}
{{- end }}

{{/* The name of the root Certificate, of its subject, and of the Issuer that signs with it; used without an issuerRef. */}}
{{- define "spark-usher.authorityName" -}}
{{- include "spark-usher.fullname" . }}-ca
{{- end }}

{{/* The name of the ValidatingWebhookConfiguration. API servers call these in parallel, so the name sets no order. */}}
{{- define "spark-usher.validatingName" -}}
{{- include "spark-usher.fullname" . }}
{{- end }}

{{- define "spark-usher.configMapName" -}}
{{- default (printf "%s-policy" (include "spark-usher.fullname" .)) .Values.existingConfigMap }}
{{- end }}

{{/* The fields that both webhook configurations share. */}}
{{- define "spark-usher.webhook" -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
failurePolicy: {{ .hook.failurePolicy }}
timeoutSeconds: {{ .hook.timeoutSeconds }}
objectSelector:
  matchExpressions:
    - {key: spark-role, operator: In, values: [driver, executor]}
namespaceSelector:
  matchExpressions:
    {{- include "spark-usher.namespaces" .root | nindent 4 }}
{{- with .hook.matchConditions }}
matchConditions:
  {{- toYaml . | nindent 2 }}
{{- end }}
clientConfig:
  service:
    name: {{ include "spark-usher.fullname" .root }}
    namespace: {{ include "spark-usher.namespace" .root | quote }}
    path: {{ .path }}
    port: {{ .root.Values.webhook.servicePort }}
  {{- if eq .root.Values.certificates.source "secret" }}
  caBundle: {{ required "certificates.caBundle: expected the CA of your certificate (PEM), which certificates.source: secret requires" .root.Values.certificates.caBundle | b64enc | quote }}
  {{- end }}
{{- end }}

{{/*
Requirements on the labels of namespaces. The release's own namespace is excluded: otherwise an unavailable webhook could
block the creation of its own pods.
*/}}
{{- define "spark-usher.namespaces" -}}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: {{ append (default list .Values.webhook.excludedNamespaces) (include "spark-usher.namespace" .) | uniq | toJson }}
{{- with .Values.webhook.namespaces }}
- key: kubernetes.io/metadata.name
  operator: In
  values: {{ toJson . }}
{{- end }}
{{- with .Values.webhook.namespaceSelector }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The admission policies that the leader applies. */}}
{{- define "spark-usher.admissionPolicies" -}}
{{- $kinds := list }}
{{- if .Values.validatingPolicy.enabled }}
{{- $kinds = append $kinds "validating" }}
{{- end }}
{{- if .Values.fallbackPolicy.enabled }}
{{- $kinds = append $kinds (ternary "fallback-scheduler" "fallback" .Values.fallbackPolicy.scheduler) }}
{{- end }}
{{- join "," $kinds }}
{{- end }}

{{/* Annotations of a webhook configuration. */}}
{{- define "spark-usher.webhookAnnotations" -}}
{{- $annotations := dict }}
{{- if eq .root.Values.certificates.source "certManager" }}
{{- $_ := set $annotations "cert-manager.io/inject-ca-from" (printf "%s/%s" (include "spark-usher.namespace" .root) (include "spark-usher.fullname" .root)) }}
{{- end }}
{{- toYaml (merge $annotations (default dict .hook.annotations)) }}
{{- end }}

{{/*
A map without its nulls, as JSON: the program reads a null in the policy file as the default, and so must the templates.
*/}}
{{- define "spark-usher.withoutNulls" -}}
{{- $kept := dict }}
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}
{{- $_ := set $kept $key (include "spark-usher.withoutNulls" $value | fromJson) }}
{{- else if not (kindIs "invalid" $value) }}
{{- $_ := set $kept $key $value }}
{{- end }}
{{- end }}
{{- toJson $kept }}
{{- end }}

{{- /* The recovery rules that delete pods, with blanks between them. Helm reads the mode off as the boolean false. */}}
{{- define "spark-usher.acting" -}}
{{- $config := include "spark-usher.withoutNulls" .Values.config | fromJson }}
{{- $recovery := dig "recovery" dict $config }}
{{- $acting := list }}
{{- if eq (toString (dig "act" false $recovery)) "true" }}
{{- range $rule, $mode := dict "stuck" "warn" "unregistered" "warn" "givenUp" "warn" "hopeless" "warn" "zombieDriver" "warn" "orphans" "act" "refused" "act" "terminating" "warn" }}
{{- if eq (toString (dig $rule "mode" $mode $recovery)) "act" }}
{{- $acting = append $acting $rule }}
{{- end }}
{{- end }}
{{- end }}
{{- join " " $acting }}
{{- end }}
