PRAGMA application_id = 1466322279;
PRAGMA user_version = 4;
BEGIN TRANSACTION;
CREATE TABLE definitions(
  number INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  body TEXT NOT NULL
) STRICT;
INSERT INTO "definitions" VALUES(1,X'EE0FD1E524B1D28B3D3C9158E12C4A686B1CC9742E905A4153832096BA79701A','{"name":"chain","graphs":[{"name":"chain","steps":[{"name":"a","queue":"a"},{"name":"b","queue":"b","depends":[{"step":0}]},{"name":"c","queue":"c","depends":[{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(2,X'9D2F9FE0179AE5BB0EBAF4148F8255042F1A56B4E5F7112E938136BB78F3C1A1','{"name":"gather","graphs":[{"name":"gather","steps":[{"name":"split","queue":"split"},{"name":"items","queue":"items","depends":[{"step":0}],"task":1},{"name":"join","queue":"join","depends":[{"step":1},{"step":0}]}]},{"name":"item","fan_out":{"list_key":"sections","item_key":"section"},"steps":[{"name":"weigh","queue":"weigh"},{"name":"mark","queue":"mark","depends":[{"step":0}]}]}]}');
INSERT INTO "definitions" VALUES(3,X'CE28566515E3F3F6D49F128A7962CCC3F229B9D0F466721051B38139E6DB0BD9','{"name":"patient","deadline":315360000000,"graphs":[{"name":"patient","steps":[{"name":"late","queue":"late","timeout":311040000000,"retry":{"attempts":3,"backoff":259200000000,"factor_milli":2000,"max_backoff":259200000000}},{"name":"never","queue":"never","when":"input.never == true"},{"name":"last","queue":"last","depends":[{"step":0},{"step":1}]}]}]}');
INSERT INTO "definitions" VALUES(4,X'7F0B9811F22FD122D2F09CA2E39BA63FA3B3E2AC297FFD881F3B34921F343CE9','{"name":"person","graphs":[{"name":"person","steps":[{"name":"review","queue":"review","external":true,"status":{"words":["OPEN","APPROVED","REFUSED"]}},{"name":"tell","queue":"tell","depends":[{"step":0}]}]}]}');
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "entries" VALUES(1,1,'[{"job_created":{"message":{"n":1,"large":12345678901234567890}}},{"step_started":{"step":0,"attempt":1,"at":1795336145984434289}}]',1778423755);
INSERT INTO "entries" VALUES(2,1,'[{"step_confirmed":{"step":0}}]',420588887);
INSERT INTO "entries" VALUES(3,2,'[{"job_created":{"message":{"n":2}}},{"step_started":{"step":0,"attempt":1,"at":1795336146040434418}}]',9965602);
INSERT INTO "entries" VALUES(4,1,'[{"step_completed":{"step":0,"at":1795336146046112978,"output":{"n":1.1}}},{"step_started":{"step":1,"attempt":1,"at":1795336146046112978}}]',1746710716);
INSERT INTO "entries" VALUES(5,2,'[{"step_confirmed":{"step":0}}]',3398087084);
INSERT INTO "entries" VALUES(6,2,'[{"step_completed":{"step":0,"at":1795336146098956804,"output":{"n":2}}},{"step_started":{"step":1,"attempt":1,"at":1795336146098956804}}]',883673981);
INSERT INTO "entries" VALUES(7,1,'[{"step_confirmed":{"step":1}}]',2712521266);
INSERT INTO "entries" VALUES(8,2,'[{"step_completed":{"step":1,"at":1795336146126693447,"output":{"n":2}}},{"step_started":{"step":2,"attempt":1,"at":1795336146126693447}}]',956635240);
INSERT INTO "entries" VALUES(9,2,'[{"step_confirmed":{"step":2}}]',1619228967);
INSERT INTO "entries" VALUES(10,2,'[{"step_completed":{"step":2,"at":1795336146184997167,"output":{"sum":6}}},{"job_completed":{"at":1795336146184997167}}]',732087490);
INSERT INTO "entries" VALUES(11,3,'[{"job_created":{"message":{"n":3}}},{"step_started":{"step":0,"attempt":1,"at":1795336146249186106}}]',4088937046);
INSERT INTO "entries" VALUES(12,3,'[{"step_confirmed":{"step":0}}]',2214836741);
INSERT INTO "entries" VALUES(13,3,'[{"step_completed":{"step":0,"at":1795336146294685024,"output":{"n":3}}},{"step_started":{"step":1,"attempt":1,"at":1795336146294685024}}]',3633281818);
INSERT INTO "entries" VALUES(14,3,'[{"step_confirmed":{"step":1}}]',1019207008);
INSERT INTO "entries" VALUES(15,3,'[{"step_completed":{"step":1,"at":1795336146334683296,"output":{"n":3}}},{"step_started":{"step":2,"attempt":1,"at":1795336146334683296}}]',2203436761);
INSERT INTO "entries" VALUES(16,3,'[{"step_confirmed":{"step":2}}]',772436622);
INSERT INTO "entries" VALUES(17,3,'[{"step_failed":{"step":2,"at":1795336146379978866,"failure":{"reason":"the worker reported an error: no"}}},{"job_failed":{"at":1795336146379978866,"reason":"step \"c\": the worker reported an error: no"}}]',3116329363);
INSERT INTO "entries" VALUES(18,4,'[{"job_created":{"message":{"n":4}}},{"step_started":{"step":0,"attempt":1,"at":1795336146430633098}}]',1673689860);
INSERT INTO "entries" VALUES(19,5,'[{"job_created":{"message":{}}},{"step_started":{"step":0,"attempt":1,"at":1795336146448970472}}]',2523153139);
INSERT INTO "entries" VALUES(20,4,'[{"step_confirmed":{"step":0}}]',3066924571);
INSERT INTO "entries" VALUES(21,5,'[{"step_confirmed":{"step":0}}]',4165240242);
INSERT INTO "entries" VALUES(22,5,'[{"step_completed":{"step":0,"at":1795336146475205053,"output":{"sections":["x", "y"],"title":"t"}}},{"fan_out_started":{"step":1,"at":1795336146475205053,"items":2}},{"children_started":{"step":1,"from":0,"count":2}}]',4186678862);
INSERT INTO "entries" VALUES(23,6,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336146478290685}}]',606065415);
INSERT INTO "entries" VALUES(24,7,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336146478540854}}]',4036195234);
INSERT INTO "entries" VALUES(25,6,'[{"step_confirmed":{"step":0}}]',736074057);
INSERT INTO "entries" VALUES(26,7,'[{"step_confirmed":{"step":0}}]',1700172512);
INSERT INTO "entries" VALUES(27,6,'[{"step_completed":{"step":0,"at":1795336146510028202,"output":{"section":{"kg": 1}}}},{"step_started":{"step":1,"attempt":1,"at":1795336146510028202}}]',2604849830);
INSERT INTO "entries" VALUES(28,6,'[{"step_confirmed":{"step":1}}]',2472803884);
INSERT INTO "entries" VALUES(29,6,'[{"step_completed":{"step":1,"at":1795336146527590078,"output":{"section":{"kg": 1, "good": true}}}},{"job_completed":{"at":1795336146527590078}}]',629000324);
INSERT INTO "entries" VALUES(30,5,'[{"child_completed":{"step":1,"index":0,"item":[0,{"kg": 1, "good": true}]}}]',1533732189);
INSERT INTO "entries" VALUES(31,7,'[{"step_completed":{"step":0,"at":1795336146531292457,"output":{"section":{"kg": 1}}}},{"step_started":{"step":1,"attempt":1,"at":1795336146531292457}}]',746762237);
INSERT INTO "entries" VALUES(32,7,'[{"step_confirmed":{"step":1}}]',3723163013);
INSERT INTO "entries" VALUES(33,7,'[{"step_completed":{"step":1,"at":1795336146566368115,"output":{"section":{"kg": 1, "good": true}}}},{"job_completed":{"at":1795336146566368115}}]',4065198550);
INSERT INTO "entries" VALUES(34,5,'[{"child_completed":{"step":1,"index":1,"item":[0,{"kg": 1, "good": true}]}},{"fan_out_completed":{"step":1,"at":1795336146597109689}},{"step_started":{"step":2,"attempt":1,"at":1795336146597109689}}]',2445121906);
INSERT INTO "entries" VALUES(35,5,'[{"step_confirmed":{"step":2}}]',1380797753);
INSERT INTO "entries" VALUES(36,5,'[{"step_completed":{"step":2,"at":1795336146649148775,"output":{"kg":2}}},{"job_completed":{"at":1795336146649148775}}]',2461606268);
INSERT INTO "entries" VALUES(37,8,'[{"job_created":{"message":{"from":"a client"}}},{"step_started":{"step":0,"attempt":1,"at":1795336146692174792}}]',667400432);
INSERT INTO "entries" VALUES(38,8,'[{"step_confirmed":{"step":0}}]',1313075573);
INSERT INTO "entries" VALUES(39,8,'[{"step_completed":{"step":0,"at":1795336146733897456,"output":{"sections":[1, 2, 3, 4, 5],"title":"t"}}},{"fan_out_started":{"step":1,"at":1795336146733897456,"items":5}},{"children_started":{"step":1,"from":0,"count":5}}]',4035592092);
INSERT INTO "entries" VALUES(40,9,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336146735326257}}]',2073497795);
INSERT INTO "entries" VALUES(41,11,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336146736070664}}]',4010086209);
INSERT INTO "entries" VALUES(42,13,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336146736241532}}]',3183596421);
INSERT INTO "entries" VALUES(43,10,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336146736323047}}]',1080173303);
INSERT INTO "entries" VALUES(44,12,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795336146736358641}}]',2219284930);
INSERT INTO "entries" VALUES(45,13,'[{"step_confirmed":{"step":0}}]',3785347641);
INSERT INTO "entries" VALUES(46,9,'[{"step_confirmed":{"step":0}}]',13302492);
INSERT INTO "entries" VALUES(47,11,'[{"step_confirmed":{"step":0}}]',2648239502);
INSERT INTO "entries" VALUES(48,10,'[{"step_confirmed":{"step":0}}]',3545359911);
INSERT INTO "entries" VALUES(49,12,'[{"step_confirmed":{"step":0}}]',2937510288);
INSERT INTO "entries" VALUES(50,9,'[{"step_completed":{"step":0,"at":1795336146763217812,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336146763217812}}]',933420484);
INSERT INTO "entries" VALUES(51,11,'[{"step_completed":{"step":0,"at":1795336146764488484,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336146764488484}}]',4268546505);
INSERT INTO "entries" VALUES(52,13,'[{"step_completed":{"step":0,"at":1795336146764699231,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795336146764699231}}]',4115765327);
INSERT INTO "entries" VALUES(53,9,'[{"step_confirmed":{"step":1}}]',3094781369);
INSERT INTO "entries" VALUES(54,13,'[{"step_confirmed":{"step":1}}]',1495512412);
INSERT INTO "entries" VALUES(55,11,'[{"step_confirmed":{"step":1}}]',627346155);
INSERT INTO "entries" VALUES(56,9,'[{"step_completed":{"step":1,"at":1795336146788594079,"output":{"section":{"kg": 2, "good": true}}}},{"job_completed":{"at":1795336146788594079}}]',2588365838);
INSERT INTO "entries" VALUES(57,14,'[{"job_created":{"message":{"n":5}}},{"step_started":{"step":0,"attempt":1,"at":1795336146790355746}}]',1272997009);
INSERT INTO "entries" VALUES(58,11,'[{"step_completed":{"step":1,"at":1795336146790632399,"output":{"section":{"kg": 2, "good": true}}}},{"job_completed":{"at":1795336146790632399}}]',2665270119);
INSERT INTO "entries" VALUES(59,8,'[{"child_completed":{"step":1,"index":0,"item":[0,{"kg": 2, "good": true}]}}]',2370560538);
INSERT INTO "entries" VALUES(60,8,'[{"child_completed":{"step":1,"index":2,"item":[0,{"kg": 2, "good": true}]}}]',274330952);
INSERT INTO "entries" VALUES(61,14,'[{"step_confirmed":{"step":0}}]',839175874);
INSERT INTO "entries" VALUES(62,14,'[{"job_paused":{"at":1795336146821889500}}]',3777738848);
INSERT INTO "entries" VALUES(63,15,'[{"job_created":{"message":{"n":6}}},{"step_started":{"step":0,"attempt":1,"at":1795336146825389029}}]',908948988);
INSERT INTO "entries" VALUES(64,15,'[{"job_cancelled":{"at":1795336146829360350,"reason":"by a call of the API"}}]',637355449);
INSERT INTO "entries" VALUES(65,16,'[{"job_created":{"message":{"n":7}}},{"step_started":{"step":0,"attempt":1,"at":1795336146832646137}}]',348913005);
INSERT INTO "entries" VALUES(66,14,'[{"step_completed":{"step":0,"at":1795336146834451654,"output":{"n":5}}}]',580455414);
INSERT INTO "entries" VALUES(67,16,'[{"step_completed":{"step":0,"at":1795336146849299890,"output":{"n":7}}},{"step_started":{"step":1,"attempt":1,"at":1795336146849299890}}]',1765304239);
INSERT INTO "entries" VALUES(68,16,'[{"step_confirmed":{"step":1}}]',3700584077);
INSERT INTO "entries" VALUES(69,16,'[{"step_completed":{"step":1,"at":1795336146890941330,"output":{"n":7}}},{"step_started":{"step":2,"attempt":1,"at":1795336146890941330}}]',1326128706);
INSERT INTO "entries" VALUES(70,16,'[{"step_confirmed":{"step":2}}]',3458711907);
INSERT INTO "entries" VALUES(71,16,'[{"step_failed":{"step":2,"at":1795336146938591539,"failure":{"reason":"the worker reported an error: not yet"}}},{"job_failed":{"at":1795336146938591539,"reason":"step \"c\": the worker reported an error: not yet"}}]',3779065700);
INSERT INTO "entries" VALUES(72,16,'[{"job_retried":{"at":1795336146974464689,"round":1}},{"step_started":{"step":2,"attempt":2,"at":1795336146974464689}}]',3202916591);
INSERT INTO "entries" VALUES(73,17,'[{"job_created":{"message":{"never":false},"deadline":2110696146984828239}},{"step_started":{"step":0,"attempt":1,"at":1795336146984828239,"deadline":2106376146984828239}},{"step_skipped":{"step":1,"at":1795336146984828239}}]',2307970932);
INSERT INTO "entries" VALUES(74,16,'[{"step_confirmed":{"step":2}}]',3458711907);
INSERT INTO "entries" VALUES(75,17,'[{"step_confirmed":{"step":0}}]',715588161);
INSERT INTO "entries" VALUES(76,18,'[{"job_created":{"message":{"for":"a person"}}},{"step_started":{"step":0,"attempt":1,"at":1795336147008354222}}]',433723075);
INSERT INTO "entries" VALUES(77,17,'[{"attempt_failed":{"step":0,"attempt":1,"at":1795336147013931657,"failure":{"reason":"the worker reported an error: try again"},"retry_at":1977877073989185831}}]',2817540981);
INSERT INTO "entries" VALUES(78,19,'[{"job_created":{"message":{"n":12}}},{"caller_joined":{"caller":{"reply_to":"answers","correlation_id":"mine"}}},{"step_started":{"step":0,"attempt":1,"at":1795336147028377598}}]',3775827255);
INSERT INTO "entries" VALUES(79,19,'[{"step_confirmed":{"step":0}}]',3082097939);
CREATE TABLE jobs(
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  workflow TEXT NOT NULL,
  definition INTEGER NOT NULL REFERENCES definitions(number),
  graph INTEGER NOT NULL,
  root INTEGER NOT NULL,
  parent INTEGER,
  step INTEGER,
  item INTEGER,
  depth INTEGER NOT NULL,
  created INTEGER NOT NULL,
  state TEXT NOT NULL,
  ended INTEGER,
  open INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795336145984176650,'running',NULL,1,2688127506);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795336146040305907,'completed',1795336146184997167,0,589292033);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795336146249103937,'failed',1795336146379978866,0,3645981996);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795336146430525202,'running',NULL,1,536385772);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795336146448897634,'completed',1795336146649148775,0,1443358608);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795336146478202717,'completed',1795336146527590078,0,100753702);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795336146478504907,'completed',1795336146566368115,0,406343592);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795336146692050204,'running',NULL,1,2574108285);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795336146735254025,'completed',1795336146788594079,0,2746584269);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795336146735606984,'running',NULL,1,2346168571);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795336146735990003,'completed',1795336146790632399,0,1280013273);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795336146736212716,'running',NULL,1,1296981465);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795336146736220344,'running',NULL,1,1039723985);
INSERT INTO "jobs" VALUES(14,X'00000000000040008000000000000005','chain',1,0,14,NULL,NULL,NULL,0,1795336146790230220,'paused',NULL,1,1340197767);
INSERT INTO "jobs" VALUES(15,X'00000000000040008000000000000006','chain',1,0,15,NULL,NULL,NULL,0,1795336146825311609,'cancelled',1795336146829360350,0,2567553462);
INSERT INTO "jobs" VALUES(16,X'00000000000040008000000000000007','chain',1,0,16,NULL,NULL,NULL,0,1795336146832579059,'running',NULL,1,2040146009);
INSERT INTO "jobs" VALUES(17,X'00000000000040008000000000000008','patient',3,0,17,NULL,NULL,NULL,0,1795336146984760121,'running',NULL,1,3866531581);
INSERT INTO "jobs" VALUES(18,X'00000000000040008000000000000009','person',4,0,18,NULL,NULL,NULL,0,1795336147008239365,'running',NULL,1,4142794335);
INSERT INTO "jobs" VALUES(19,X'00000000000040008000000000000012','chain',1,0,19,NULL,NULL,NULL,0,1795336147026943491,'running',NULL,1,1167550457);
CREATE TABLE notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE "status_chain"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "a" TEXT NOT NULL DEFAULT '', "b" TEXT NOT NULL DEFAULT '', "c" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000001','running','2026-11-22T08:29:05.984Z','2026-11-22T08:29:06.046Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000002','completed','2026-11-22T08:29:06.040Z','2026-11-22T08:29:06.184Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000003','failed','2026-11-22T08:29:06.249Z','2026-11-22T08:29:06.379Z','COMPLETED','COMPLETED','FAILED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000004','running','2026-11-22T08:29:06.430Z','2026-11-22T08:29:06.430Z','PENDING','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000005','paused','2026-11-22T08:29:06.790Z','2026-11-22T08:29:06.834Z','COMPLETED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000006','cancelled','2026-11-22T08:29:06.825Z','2026-11-22T08:29:06.829Z','CANCELLED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000007','running','2026-11-22T08:29:06.832Z','2026-11-22T08:29:06.974Z','COMPLETED','COMPLETED','PENDING');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000012','running','2026-11-22T08:29:07.026Z','2026-11-22T08:29:07.028Z','PENDING','','');
CREATE TABLE "status_gather"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "split" TEXT NOT NULL DEFAULT '', "items" TEXT NOT NULL DEFAULT '', "join" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000011','completed','2026-11-22T08:29:06.448Z','2026-11-22T08:29:06.649Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000010','running','2026-11-22T08:29:06.692Z','2026-11-22T08:29:06.733Z','COMPLETED','PENDING','');
CREATE TABLE "status_patient"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "late" TEXT NOT NULL DEFAULT '', "never" TEXT NOT NULL DEFAULT '', "last" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_patient" VALUES('00000000-0000-4000-8000-000000000008','running','2026-11-22T08:29:06.984Z','2026-11-22T08:29:06.984Z','PENDING','SKIPPED','');
CREATE TABLE "status_person"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "review" TEXT NOT NULL DEFAULT '', "tell" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_person" VALUES('00000000-0000-4000-8000-000000000009','running','2026-11-22T08:29:07.008Z','2026-11-22T08:29:07.008Z','OPEN','');
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX entries_by_job ON entries(job);
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE UNIQUE INDEX "index job of chain" ON "status_chain"("job");
CREATE INDEX "index state of chain" ON "status_chain"("state");
CREATE INDEX "index a of chain" ON "status_chain"("a");
CREATE INDEX "index b of chain" ON "status_chain"("b");
CREATE INDEX "index c of chain" ON "status_chain"("c");
CREATE UNIQUE INDEX "index job of gather" ON "status_gather"("job");
CREATE INDEX "index state of gather" ON "status_gather"("state");
CREATE INDEX "index split of gather" ON "status_gather"("split");
CREATE INDEX "index items of gather" ON "status_gather"("items");
CREATE INDEX "index join of gather" ON "status_gather"("join");
CREATE UNIQUE INDEX "index job of patient" ON "status_patient"("job");
CREATE INDEX "index state of patient" ON "status_patient"("state");
CREATE INDEX "index late of patient" ON "status_patient"("late");
CREATE INDEX "index never of patient" ON "status_patient"("never");
CREATE INDEX "index last of patient" ON "status_patient"("last");
CREATE UNIQUE INDEX "index job of person" ON "status_person"("job");
CREATE INDEX "index state of person" ON "status_person"("state");
CREATE INDEX "index review of person" ON "status_person"("review");
CREATE INDEX "index tell of person" ON "status_person"("tell");
DELETE FROM "sqlite_sequence";
COMMIT;
