{{/* Where processes listen. Empty: all addresses of both families, as far as the node has them. */}}
{{- define "gateway.listenHost" -}}
{{- if eq .Values.listenAddress "0.0.0.0" }}{{ .Values.listenAddress }}{{ end -}}
{{- end -}}

{{/* What every pod's spec begins with: (dict "root" $ "component" "api" "values" .Values.api "token" true). */}}
{{- define "gateway.podSpec" -}}
serviceAccountName: {{ include "gateway.name" .root }}-{{ .component }}
automountServiceAccountToken: {{ default false .token }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .root.Values.podSecurityContext.runAsUser }}
  runAsGroup: {{ .root.Values.podSecurityContext.runAsGroup }}
  fsGroup: {{ .root.Values.podSecurityContext.runAsGroup }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range uniq . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .values }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- include "gateway.strings" (list .) | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .terminationGracePeriodSeconds }}
terminationGracePeriodSeconds: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Health port and bounds of client connections: (dict "root" $ "values" .Values.api). */}}
{{- define "gateway.connectionEnv" -}}
- {name: GATEWAY_HEALTH_HOST, value: {{ include "gateway.listenHost" .root | quote }}}
- {name: GATEWAY_HEALTH_PORT, value: "8082"}
- {name: GATEWAY_METRICS_ENABLED, value: {{ .values.metrics | quote }}}
- {name: GATEWAY_TRUSTED_PROXIES, value: {{ join "," .root.Values.connections.trustedProxyCidrs | quote }}}
- {name: GATEWAY_MAX_HEADERS, value: {{ .root.Values.connections.maxHeaders | quote }}}
- {name: GATEWAY_MAX_HEAD_BYTES, value: {{ .root.Values.connections.maxHeadBytes | int64 | quote }}}
- {name: GATEWAY_HEAD_SECONDS, value: {{ .root.Values.connections.headSeconds | quote }}}
- {name: GATEWAY_IDLE_SECONDS, value: {{ .root.Values.connections.idleSeconds | quote }}}
- {name: GATEWAY_STALL_SECONDS, value: {{ .root.Values.connections.stallSeconds | quote }}}
{{- with .values.connections }}
- {name: GATEWAY_MAX_CONNECTIONS, value: {{ .total | int64 | quote }}}
- {name: GATEWAY_MAX_CONNECTIONS_PER_ADDRESS, value: {{ .perAddress | int64 | quote }}}
{{- end }}
{{- with .values.downloads }}
- {name: GATEWAY_MAX_DOWNLOADS, value: {{ .total | int64 | quote }}}
- {name: GATEWAY_MAX_DOWNLOADS_PER_ADDRESS, value: {{ .perAddress | int64 | quote }}}
- {name: GATEWAY_MAX_DOWNLOADS_PER_LINK, value: {{ .perLink | int64 | quote }}}
{{- end }}
{{- end -}}

{{/* Spread over nodes and zones, for kinds with several pods. */}}
{{- define "gateway.spread" -}}
{{- if .root.Values.topologySpread }}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "gateway.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A pod template's metadata: as for podSpec. */}}
{{- define "gateway.podMetadata" -}}
{{- $of := has .component (list "secrets" "test") | ternary "hooks" .component -}}
{{- $selector := include "gateway.selector" . | fromYaml -}}
labels:
  {{- /* without the chart's version, which would have every pod replaced by every release */}}
  {{- include "gateway.protected" (dict "own" (merge (dict "app.kubernetes.io/part-of" "model-gateway") $selector) "fixed" $selector
        "given" (list (list "commonLabels" .root.Values.commonLabels) (list (printf "%s.podLabels" $of) .values.podLabels))) | nindent 2 }}
{{- with include "gateway.protected" (dict "own" .annotations "fixed" .annotations
      "given" (list (list (printf "%s.podAnnotations" $of) .values.podAnnotations))) }}
annotations:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The gateway's image with the least rights: the beginning of a container. */}}
{{- define "gateway.container" -}}
{{ include "gateway.containerOf" (list . dict) }}
{{- end -}}

{{/* The same with another image, if one is set: (list $ .Values.redis.image). */}}
{{- define "gateway.containerOf" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.repository }}
image: {{ printf "%s:%s" $image.repository (required "an image with a repository needs a tag" $image.tag) | quote }}
{{- else }}
image: {{ include "gateway.image" $root | quote }}
{{- end }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "gateway.logEnv" -}}
- {name: GATEWAY_LOG_LEVEL, value: {{ .Values.log.level }}}
- {name: GATEWAY_LOG_FORMAT, value: {{ .Values.log.format }}}
{{- end -}}

{{/* What API and MCP process are told alike: how they admit calls. */}}
{{- define "gateway.serviceEnv" -}}
- {name: GATEWAY_ACCESS_LOG, value: {{ .Values.log.access | quote }}}
- {name: GATEWAY_NAMESPACE, value: {{ .Release.Namespace | quote }}}
- {name: GATEWAY_BASE_URL, value: {{ include "gateway.apiUrl" . | quote }}}
- {name: GATEWAY_MCP_URL, value: {{ include "gateway.mcpUrl" . | quote }}}
- {name: GATEWAY_OAUTH_REGISTRATION, value: {{ .Values.oauth.dcr.enabled | quote }}}
- {name: GATEWAY_OAUTH_DOCUMENTS, value: {{ .Values.oauth.cimd.enabled | quote }}}
- {name: GATEWAY_PAID_RPM, value: {{ .Values.rateLimit.paidRpm | int64 | quote }}}
- {name: GATEWAY_ACCOUNT_BYTES, value: {{ .Values.storage.accountBytes | int64 | quote }}}
- {name: GATEWAY_MAINTENANCE, value: {{ .Values.api.maintenance | quote }}}
- {name: GATEWAY_SECRETS_DIR, value: /etc/gateway/secrets}
- {name: GATEWAY_CALLBACK_ALLOWED_CIDRS, value: {{ join "," .Values.callbacks.allowedCIDRs | quote }}}
- {name: GATEWAY_DENIED_CIDRS, value: {{ join "," .Values.deniedCIDRs | quote }}}
- {name: GATEWAY_CLIENT_TRACES, value: {{ .Values.tracing.clients }}}
{{- end -}}

{{/* OpenTelemetry's own variables; without an endpoint there are none, and nothing is traced. */}}
{{- define "gateway.tracingEnv" -}}
{{- with .Values.tracing }}
{{- if .endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ .ratio | toString | quote }}}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: {{ printf "service.namespace=%s" $.Release.Namespace | quote }}}
{{- if .headersSecret.name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .headersSecret.name | quote }}, key: {{ .headersSecret.key | quote }}}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gateway.redisEnv" -}}
{{- if .Values.redis.enabled -}}
- name: GATEWAY_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ include "gateway.redisSecret" . | quote }}, key: url}}
{{- else }}
{{- with .Values.redis.external -}}
- name: GATEWAY_REDIS_URL
  {{- if .urlSecret.name }}
  valueFrom: {secretKeyRef: {name: {{ .urlSecret.name | quote }}, key: {{ .urlSecret.key | quote }}}}
  {{- else }}
  value: {{ required "redis.external.urlSecret.name is needed where redis.enabled is false, or redis.external.url" .url | quote }}
  {{- end }}
{{- include "gateway.signInEnv" (list "GATEWAY_REDIS" .authSecret) }}
{{- if .tls.caSecret.name }}
- {name: GATEWAY_REDIS_CA_FILE, value: /etc/gateway/redis/ca.crt}
{{- end }}
{{- if .tls.certificateSecret }}
- {name: GATEWAY_REDIS_CERTIFICATE_FILE, value: /etc/gateway/redis/tls.crt}
- {name: GATEWAY_REDIS_KEY_FILE, value: /etc/gateway/redis/tls.key}
{{- end }}
{{- with .sentinel }}
{{- if .addresses }}
- {name: GATEWAY_REDIS_SENTINELS, value: {{ join "," .addresses | quote }}}
- {name: GATEWAY_REDIS_SENTINEL_SERVICE, value: {{ .service | quote }}}
{{- include "gateway.signInEnv" (list "GATEWAY_REDIS_SENTINEL" .authSecret) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* User and password of a Secret: (list "PREFIX_OF_THE_VARIABLES" .authSecret). */}}
{{- define "gateway.signInEnv" -}}
{{- $prefix := first . }}
{{- with last . }}
{{- if and .name .usernameKey }}
- name: {{ $prefix }}_USERNAME
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .usernameKey | quote }}}}
{{- end }}
{{- if .name }}
- name: {{ $prefix }}_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .passwordKey | quote }}}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gateway.redisMount" -}}
{{- if include "gateway.redisVolume" . }}
- {name: redis-tls, mountPath: /etc/gateway/redis, readOnly: true}
{{- end }}
{{- end -}}

{{- define "gateway.redisVolume" -}}
{{- if not .Values.redis.enabled }}
{{- with .Values.redis.external.tls }}
{{- if or .caSecret.name .certificateSecret }}
- name: redis-tls
  projected:
    defaultMode: 0440
    sources:
      {{- if .caSecret.name }}
      - secret:
          name: {{ .caSecret.name | quote }}
          items: [{key: {{ .caSecret.key | quote }}, path: ca.crt}]
      {{- end }}
      {{- if .certificateSecret }}
      - secret:
          name: {{ .certificateSecret | quote }}
          items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gateway.cidrEnv" -}}
- {name: GATEWAY_CALLBACK_ALLOWED_CIDRS, value: {{ join "," .Values.callbacks.allowedCIDRs | quote }}}
- {name: GATEWAY_FETCH_ALLOWED_CIDRS, value: {{ join "," .Values.fetch.allowedCIDRs | quote }}}
- {name: GATEWAY_DENIED_CIDRS, value: {{ join "," .Values.deniedCIDRs | quote }}}
{{- end -}}

{{/* Where the object store is, for a container's env. */}}
{{- define "gateway.storeEnv" -}}
- {name: GATEWAY_STORE, value: {{ .Values.store.type }}}
{{- if eq .Values.store.type "directory" }}
- {name: GATEWAY_STORE_DIR, value: /var/lib/gateway}
{{- else }}
{{- with .Values.store.s3 }}
- {name: GATEWAY_STORE_BUCKET, value: {{ required "store.s3.bucket is needed where store.type is s3" .bucket | quote }}}
- {name: GATEWAY_STORE_PREFIX, value: {{ .prefix | quote }}}
- {name: GATEWAY_STORE_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: GATEWAY_STORE_REGION, value: {{ .region | quote }}}
- {name: GATEWAY_STORE_ADDRESSING, value: {{ .addressing }}}
{{- with .credentialsSecret }}
{{- if .name }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .accessKeyIdKey | quote }}}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .secretAccessKeyKey | quote }}}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gateway.storeVolume" -}}
{{- if eq .Values.store.type "directory" }}
- name: store
  persistentVolumeClaim: {claimName: {{ include "gateway.claim" . | quote }}}
{{- end }}
{{- end -}}

{{/* A budget for drains: (dict "root" $ "component" "api"). */}}
{{- define "gateway.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "gateway.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  # a pod that does not get ready must not hold up the drain of its node
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "gateway.selector" . | nindent 6 }}
{{- end -}}

{{/* The most pods that a process has, by its values. */}}
{{- define "gateway.mostPods" -}}
{{ .autoscaling.enabled | ternary .autoscaling.maxReplicas .replicas }}
{{- end -}}

{{/* An autoscaler of a Deployment: (dict "root" $ "component" "api" "values" .Values.api). */}}
{{- define "gateway.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "gateway.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ include "gateway.name" .root }}-{{ .component }}}
  {{- with .values.autoscaling }}
  minReplicas: {{ .minReplicas }}
  maxReplicas: {{ .maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ .targetCPUUtilizationPercentage }}}
  {{- end }}
  behavior:
    scaleDown: {stabilizationWindowSeconds: 300}
{{- end -}}
