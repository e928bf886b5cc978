# Installation and packages.
#
#   make install DESTDIR= PREFIX=/usr/local      make dist      make deb      make rpm
#
# Packages are built from `git archive`, so from what is committed: equal times, equal bytes.
SYSCONFDIR ?= $(if $(filter /usr,$(PREFIX)),/etc,$(PREFIX)/etc)
LIBDIR     ?= $(PREFIX)/lib
LIBEXECDIR ?= $(PREFIX)/libexec/evenkeel
UNITDIR    ?= $(LIBDIR)/systemd/system
SHAREDIR   := $(PREFIX)/share
ZSHDIR     ?= $(SHAREDIR)/zsh/$(if $(wildcard /etc/debian_version),vendor-completions,site-functions)
PLUGIN     := $(B)/libevenkeel-cuda.so
GPU_UNITS  := evenkeeld evenkeel-server@ evenkeel-managed@
D = $(DESTDIR)
PUT = install -D -m 644
DIST := evenkeel-$(VERSION)

# Paths in units and configuration follow PREFIX and SYSCONFDIR.
define fill
	@mkdir -p $(dir $(2))
	sed -e 's|@BINDIR@|$(PREFIX)/bin|g; s|@SBINDIR@|$(PREFIX)/sbin|g; s|@SYSCONFDIR@|$(SYSCONFDIR)|g; s|@LIBEXECDIR@|$(LIBEXECDIR)|g' \
	  -e 's|/usr/share/evenkeel|$(SHAREDIR)/evenkeel|g; s|: /etc/evenkeel|: $(SYSCONFDIR)/evenkeel|g' $(1) >$(2)
	chmod 644 $(2)
endef

install: all
	install -D -m 755 $(B)/evenkeel-server $(D)$(PREFIX)/bin/evenkeel-server
	install -D -m 755 $(B)/evenkeeld $(D)$(PREFIX)/sbin/evenkeeld
	install -D -m 755 $(B)/evenkeelctl $(D)$(PREFIX)/bin/evenkeelctl
	install -D -m 755 $(B)/evenkeel-nvml $(D)$(LIBEXECDIR)/evenkeel-nvml
	install -D -m 755 $(B)/evenkeel-bench $(D)$(PREFIX)/bin/evenkeel-bench
	install -d $(D)$(SHAREDIR)/evenkeel/models/evenkeel-tiny $(D)$(SYSCONFDIR)/evenkeel/servers
	install -m 644 models/evenkeel-tiny/* $(D)$(SHAREDIR)/evenkeel/models/evenkeel-tiny
	$(PUT) -t $(D)$(LIBDIR)/evenkeel/companion/evenkeel_vllm $(COMPANION)
	$(PUT) -t $(D)$(LIBDIR)/evenkeel/companion/$(notdir $(COMPANION_INFO)) $(COMPANION_INFO)/METADATA $(COMPANION_INFO)/entry_points.txt
	$(PUT) -t $(D)$(SHAREDIR)/evenkeel supervisor/doctor/signatures.yaml
	$(call fill,packaging/tiny.yaml,$(D)$(SHAREDIR)/evenkeel/servers/tiny.yaml)
	$(call fill,packaging/evenkeeld.yaml,$(D)$(SYSCONFDIR)/evenkeel/evenkeeld.yaml)
	$(PUT) docs/evenkeel-server.example.yaml $(D)$(SHAREDIR)/evenkeel/examples/server.yaml
	$(PUT) docs/evenkeeld.example.yaml $(D)$(SHAREDIR)/evenkeel/examples/evenkeeld.yaml
	$(call fill,packaging/systemd/evenkeeld.service.in,$(D)$(UNITDIR)/evenkeeld.service)
	$(call fill,packaging/systemd/evenkeel-nvml.service.in,$(D)$(UNITDIR)/evenkeel-nvml.service)
	$(call fill,packaging/systemd/evenkeel-server@.service.in,$(D)$(UNITDIR)/evenkeel-server@.service)
	$(call fill,packaging/systemd/evenkeel-managed@.service.in,$(D)$(UNITDIR)/evenkeel-managed@.service)
	$(PUT) packaging/polkit/50-evenkeel.rules $(D)$(SHAREDIR)/polkit-1/rules.d/50-evenkeel.rules
	$(PUT) -t $(D)$(UNITDIR) packaging/systemd/evenkeel.target packaging/systemd/evenkeel.slice \
	  packaging/systemd/evenkeel-nvml.socket
	$(PUT) packaging/systemd/evenkeel.sysusers $(D)$(LIBDIR)/sysusers.d/evenkeel.conf
	$(PUT) -t $(D)$(LIBDIR)/systemd/catalog packaging/evenkeel.catalog
	$(PUT) -t $(D)$(SHAREDIR)/evenkeel/alerts $(wildcard alerts/*.yml)
	sed -i 's|/usr/share/|$(SHAREDIR)/|g' $(patsubst %,$(D)$(SHAREDIR)/evenkeel/%,$(wildcard alerts/*.yml))
	$(PUT) -t $(D)$(SHAREDIR)/evenkeel/deploy $(wildcard packaging/deploy/*.*)
	$(PUT) -t $(D)$(SHAREDIR)/evenkeel/templates $(wildcard packaging/templates/*.jinja)
	$(PUT) -t $(D)$(SHAREDIR)/evenkeel/deploy/evenkeel $(wildcard packaging/deploy/evenkeel/*.yml)
	$(PUT) -t $(D)$(SHAREDIR)/evenkeel/dashboards $(wildcard dashboards/*.json dashboards/*.yaml)
	for n in 1 5 7 8; do $(PUT) -t $(D)$(SHAREDIR)/man/man$$n docs/man/*.$$n || exit 1; done
	for n in evenkeelctl evenkeel-bench; do \
	  $(PUT) packaging/completions/$$n.bash $(D)$(SHAREDIR)/bash-completion/completions/$$n && \
	  $(PUT) packaging/completions/_$$n $(D)$(ZSHDIR)/_$$n && \
	  $(PUT) -t $(D)$(SHAREDIR)/fish/vendor_completions.d packaging/completions/$$n.fish || exit 1; done
	$(PUT) -t $(D)$(SHAREDIR)/doc/evenkeel-monitoring docs/runbook.md docs/metrics.md
	for n in README.md SECURITY.md CONTRIBUTING.md alerts/prometheus.example.yml \
	  $(foreach t,md svg example.yaml example.service,$(wildcard docs/*.$t)) $(wildcard docs/dashboards/*.svg); do \
	  $(PUT) $$n $(D)$(SHAREDIR)/doc/evenkeel/$$n || exit 1; done
	$(if $(filter 1,$(CUDA)),install -D -m 644 $(PLUGIN) $(D)$(LIBDIR)/evenkeel/libevenkeel-cuda.so)
	$(if $(filter 1,$(MPI)),install -D -m 644 $(B)/libevenkeel-mpi.so $(D)$(LIBDIR)/evenkeel/libevenkeel-mpi.so)
	$(if $(filter 1,$(CUDA)),for u in $(GPU_UNITS); do \
	  $(PUT) -t $(D)$(UNITDIR)/$$u.service.d packaging/systemd/50-cuda.conf || exit 1; done)

dist: $(BUILD)/$(DIST).tar.gz
$(BUILD)/$(DIST).tar.gz: FORCE
	@mkdir -p $(BUILD)
	git archive --prefix=$(DIST)/ HEAD | gzip -$(or $(DIST_LEVEL),9)n >$@
	@echo "  DIST    $@"

# The CUDA package is built where the toolkit is and the plug-in has sources, that of MPI where Open MPI is.
PROFILES := $(if $(and $(filter 1,$(CUDA)),$(wildcard kernels/cuda/*.cu)),pkg.evenkeel.cuda) $(if $(filter 1,$(MPI)),pkg.evenkeel.mpi)
DEBDIR ?= $(BUILD)/deb
deb: dist
	tools/package-deb.sh $(BUILD)/$(DIST).tar.gz $(DEBDIR) '$(PROFILES)'
rpm: dist
	tools/package-rpm.sh $(BUILD)/$(DIST).tar.gz $(BUILD)/rpm $(if $(findstring cuda,$(PROFILES)),--with=cuda)

# What an operator's machine does with the packages; some five minutes. `make check` runs its first part on
# objects that it has, `make check-deep` (packages) on its own.
check-packages:
	@tools/deps.sh packages
	@MAKE="$(MAKE)" BUILD="$(BUILD)" tools/check-packages.sh
packages:
	@MAKE="$(MAKE)" BUILD="$(BUILD)" tools/check-packages.sh compiled

# The packages of FROM, upgraded to today's under load in such a machine: what was configured and pinned
# stays, and no connection is refused.
FROM ?= fe3fe2a
check-upgrade:
	@MAKE="$(MAKE)" BUILD="$(BUILD)" tools/check-upgrade.sh $(FROM)

# Each dashboard by Grafana's own schema, and every query of it on a real Prometheus after a real run;
# draws docs/dashboards (80 s).
check-dashboards: all build/venv-dash/ready
	@build/venv-dash/bin/python tools/dash-schema dashboards/*.json
	@B=$(B) tools/dash-preview --out docs/dashboards
build/venv-dash/ready:
	@echo "  VENV    build/venv-dash"
	@tools/venv.sh build/venv-dash "grafana-foundation-sdk==1769699998!10.1.0"
	@touch $@

FORCE:
.PHONY: install dist deb rpm packages check-packages check-upgrade check-dashboards FORCE
