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
app.kubernetes.io/name: {{ include "spark-usher.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "spark-usher.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "spark-usher.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
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
{{- $repository := .Values.image.repository }}
{{- if .Values.image.registry }}
{{- $repository = printf "%s/%s" .Values.image.registry $repository }}
{{- end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
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
    namespace: {{ .root.Release.Namespace | quote }}
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
  values: {{ append .Values.webhook.excludedNamespaces .Release.Namespace | uniq | toJson }}
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

{{- define "spark-usher.webhookAnnotations" -}}
{{- $annotations := dict }}
{{- if eq .root.Values.certificates.source "certManager" }}
{{- $_ := set $annotations "cert-manager.io/inject-ca-from" (printf "%s/%s" .root.Release.Namespace (include "spark-usher.fullname" .root)) }}
{{- end }}
{{- $annotations = merge $annotations .hook.annotations }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
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
