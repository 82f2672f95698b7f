PRAGMA application_id = 1466322279;
PRAGMA user_version = 5;
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
INSERT INTO "entries" VALUES(1,1,'[{"job_created":{"message":{"n":1,"large":12345678901234567890}}},{"step_started":{"step":0,"attempt":1,"at":1795334180738849120}}]',912038410);
INSERT INTO "entries" VALUES(2,1,'[{"step_confirmed":{"step":0}}]',420588887);
INSERT INTO "entries" VALUES(3,2,'[{"job_created":{"message":{"n":2}}},{"step_started":{"step":0,"attempt":1,"at":1795334180795690641}}]',3881067985);
INSERT INTO "entries" VALUES(4,1,'[{"step_completed":{"step":0,"at":1795334180795777025,"output":{"n":1.1}}},{"step_started":{"step":1,"attempt":1,"at":1795334180795777025}}]',3131639953);
INSERT INTO "entries" VALUES(5,2,'[{"step_confirmed":{"step":0}}]',3398087084);
INSERT INTO "entries" VALUES(6,1,'[{"step_confirmed":{"step":1}}]',2712521266);
INSERT INTO "entries" VALUES(7,2,'[{"step_completed":{"step":0,"at":1795334180812498167,"output":{"n":2}}},{"step_started":{"step":1,"attempt":1,"at":1795334180812498167}}]',3880574135);
INSERT INTO "entries" VALUES(8,2,'[{"step_confirmed":{"step":1}}]',1916196553);
INSERT INTO "entries" VALUES(9,2,'[{"step_completed":{"step":1,"at":1795334180847779068,"output":{"n":2}}},{"step_started":{"step":2,"attempt":1,"at":1795334180847779068}}]',101281989);
INSERT INTO "entries" VALUES(10,2,'[{"step_confirmed":{"step":2}}]',1619228967);
INSERT INTO "entries" VALUES(11,2,'[{"step_completed":{"step":2,"at":1795334180874355031,"output":{"sum":6}}},{"job_completed":{"at":1795334180874355031}}]',3159975016);
INSERT INTO "entries" VALUES(12,3,'[{"job_created":{"message":{"n":3}}},{"step_started":{"step":0,"attempt":1,"at":1795334180912833634}}]',1433445687);
INSERT INTO "entries" VALUES(13,3,'[{"step_confirmed":{"step":0}}]',2214836741);
INSERT INTO "entries" VALUES(14,3,'[{"step_completed":{"step":0,"at":1795334180959359609,"output":{"n":3}}},{"step_started":{"step":1,"attempt":1,"at":1795334180959359609}}]',1736437066);
INSERT INTO "entries" VALUES(15,3,'[{"step_confirmed":{"step":1}}]',1019207008);
INSERT INTO "entries" VALUES(16,3,'[{"step_completed":{"step":1,"at":1795334180983071283,"output":{"n":3}}},{"step_started":{"step":2,"attempt":1,"at":1795334180983071283}}]',3590634154);
INSERT INTO "entries" VALUES(17,3,'[{"step_confirmed":{"step":2}}]',772436622);
INSERT INTO "entries" VALUES(18,3,'[{"step_failed":{"step":2,"at":1795334181018144793,"failure":{"reason":"the worker reported an error: no"}}},{"job_failed":{"at":1795334181018144793,"reason":"step \"c\": the worker reported an error: no","step":2}}]',3365659090);
INSERT INTO "entries" VALUES(19,4,'[{"job_created":{"message":{"n":4}}},{"step_started":{"step":0,"attempt":1,"at":1795334181033079946}}]',934642458);
INSERT INTO "entries" VALUES(20,5,'[{"job_created":{"message":{}}},{"step_started":{"step":0,"attempt":1,"at":1795334181048433415}}]',322893235);
INSERT INTO "entries" VALUES(21,4,'[{"step_confirmed":{"step":0}}]',3066924571);
INSERT INTO "entries" VALUES(22,5,'[{"step_completed":{"step":0,"at":1795334181073343954,"output":{"sections":["x", "y"],"title":"t"}}},{"fan_out_started":{"step":1,"at":1795334181073343954,"items":2}},{"children_started":{"step":1,"from":0,"count":2}}]',2484119965);
INSERT INTO "entries" VALUES(23,6,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795334181094520157}}]',3387088123);
INSERT INTO "entries" VALUES(24,7,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795334181095356084}}]',1285050511);
INSERT INTO "entries" VALUES(25,6,'[{"step_confirmed":{"step":0}}]',736074057);
INSERT INTO "entries" VALUES(26,7,'[{"step_confirmed":{"step":0}}]',1700172512);
INSERT INTO "entries" VALUES(27,6,'[{"step_completed":{"step":0,"at":1795334181149827419,"output":{"section":{"kg": 1}}}},{"step_started":{"step":1,"attempt":1,"at":1795334181149827419}}]',3078379423);
INSERT INTO "entries" VALUES(28,6,'[{"step_confirmed":{"step":1}}]',2472803884);
INSERT INTO "entries" VALUES(29,6,'[{"step_completed":{"step":1,"at":1795334181194116570,"output":{"section":{"kg": 1, "good": true}}}},{"job_completed":{"at":1795334181194116570}}]',3774296613);
INSERT INTO "entries" VALUES(30,7,'[{"step_completed":{"step":0,"at":1795334181194183468,"output":{"section":{"kg": 1}}}},{"step_started":{"step":1,"attempt":1,"at":1795334181194183468}}]',2191773249);
INSERT INTO "entries" VALUES(31,5,'[{"child_completed":{"step":1,"index":0,"item":[0,{"kg": 1, "good": true}]}}]',1533732189);
INSERT INTO "entries" VALUES(32,7,'[{"step_confirmed":{"step":1}}]',3723163013);
INSERT INTO "entries" VALUES(33,7,'[{"step_completed":{"step":1,"at":1795334181229825623,"output":{"section":{"kg": 1, "good": true}}}},{"job_completed":{"at":1795334181229825623}}]',2734066866);
INSERT INTO "entries" VALUES(34,5,'[{"child_completed":{"step":1,"index":1,"item":[0,{"kg": 1, "good": true}]}},{"fan_out_completed":{"step":1,"at":1795334181236060811}},{"step_started":{"step":2,"attempt":1,"at":1795334181236060811}}]',3878320583);
INSERT INTO "entries" VALUES(35,5,'[{"step_completed":{"step":2,"at":1795334181260439950,"output":{"kg":2}}},{"job_completed":{"at":1795334181260439950}}]',1540367270);
INSERT INTO "entries" VALUES(36,8,'[{"job_created":{"message":{"from":"a client"}}},{"step_started":{"step":0,"attempt":1,"at":1795334181287543565}}]',2546680607);
INSERT INTO "entries" VALUES(37,8,'[{"step_confirmed":{"step":0}}]',1313075573);
INSERT INTO "entries" VALUES(38,8,'[{"step_completed":{"step":0,"at":1795334181340229606,"output":{"sections":[1, 2, 3, 4, 5],"title":"t"}}},{"fan_out_started":{"step":1,"at":1795334181340229606,"items":5}},{"children_started":{"step":1,"from":0,"count":5}}]',2910285174);
INSERT INTO "entries" VALUES(39,9,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795334181361375514}}]',1395898621);
INSERT INTO "entries" VALUES(40,10,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795334181361474493}}]',93081718);
INSERT INTO "entries" VALUES(41,11,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795334181361490600}}]',3890876634);
INSERT INTO "entries" VALUES(42,12,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795334181361502994}}]',1702758758);
INSERT INTO "entries" VALUES(43,13,'[{"job_created":{}},{"step_started":{"step":0,"attempt":1,"at":1795334181361514169}}]',128183226);
INSERT INTO "entries" VALUES(44,9,'[{"step_confirmed":{"step":0}}]',13302492);
INSERT INTO "entries" VALUES(45,9,'[{"step_completed":{"step":0,"at":1795334181390085562,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795334181390085562}}]',3068973964);
INSERT INTO "entries" VALUES(46,10,'[{"step_completed":{"step":0,"at":1795334181390267534,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795334181390267534}}]',244654344);
INSERT INTO "entries" VALUES(47,11,'[{"step_confirmed":{"step":0}}]',2648239502);
INSERT INTO "entries" VALUES(48,12,'[{"step_confirmed":{"step":0}}]',2937510288);
INSERT INTO "entries" VALUES(49,13,'[{"step_confirmed":{"step":0}}]',3785347641);
INSERT INTO "entries" VALUES(50,11,'[{"step_completed":{"step":0,"at":1795334181390993501,"output":{"section":{"kg": 2}}}},{"step_started":{"step":1,"attempt":1,"at":1795334181390993501}}]',2554142500);
INSERT INTO "entries" VALUES(51,9,'[{"step_confirmed":{"step":1}}]',3094781369);
INSERT INTO "entries" VALUES(52,11,'[{"step_confirmed":{"step":1}}]',627346155);
INSERT INTO "entries" VALUES(53,10,'[{"step_confirmed":{"step":1}}]',1810727234);
INSERT INTO "entries" VALUES(54,9,'[{"step_completed":{"step":1,"at":1795334181464161963,"output":{"section":{"kg": 2, "good": true}}}},{"job_completed":{"at":1795334181464161963}}]',3970461090);
INSERT INTO "entries" VALUES(55,10,'[{"step_completed":{"step":1,"at":1795334181464311455,"output":{"section":{"kg": 2, "good": true}}}},{"job_completed":{"at":1795334181464311455}}]',2277538870);
INSERT INTO "entries" VALUES(56,14,'[{"job_created":{"message":{"n":5}}},{"step_started":{"step":0,"attempt":1,"at":1795334181465018662}}]',2070380440);
INSERT INTO "entries" VALUES(57,8,'[{"child_completed":{"step":1,"index":0,"item":[0,{"kg": 2, "good": true}]}}]',2370560538);
INSERT INTO "entries" VALUES(58,8,'[{"child_completed":{"step":1,"index":1,"item":[0,{"kg": 2, "good": true}]}}]',3284330931);
INSERT INTO "entries" VALUES(59,14,'[{"step_confirmed":{"step":0}}]',839175874);
INSERT INTO "entries" VALUES(60,14,'[{"job_paused":{"at":1795334181483360835}}]',486186830);
INSERT INTO "entries" VALUES(61,14,'[{"step_completed":{"step":0,"at":1795334181484759475,"output":{"n":5}}}]',1014720233);
INSERT INTO "entries" VALUES(62,15,'[{"job_created":{"message":{"n":6}}},{"step_started":{"step":0,"attempt":1,"at":1795334181491349303}}]',227375536);
INSERT INTO "entries" VALUES(63,15,'[{"job_cancelled":{"at":1795334181494142684,"reason":"by a call of the API"}}]',3737222371);
INSERT INTO "entries" VALUES(64,16,'[{"job_created":{"message":{"n":7}}},{"step_started":{"step":0,"attempt":1,"at":1795334181496617431}}]',2979148219);
INSERT INTO "entries" VALUES(65,16,'[{"step_confirmed":{"step":0}}]',1680738792);
INSERT INTO "entries" VALUES(66,16,'[{"step_completed":{"step":0,"at":1795334181519347857,"output":{"n":7}}},{"step_started":{"step":1,"attempt":1,"at":1795334181519347857}}]',2695543999);
INSERT INTO "entries" VALUES(67,16,'[{"step_confirmed":{"step":1}}]',3700584077);
INSERT INTO "entries" VALUES(68,16,'[{"step_completed":{"step":1,"at":1795334181545244025,"output":{"n":7}}},{"step_started":{"step":2,"attempt":1,"at":1795334181545244025}}]',3343753845);
INSERT INTO "entries" VALUES(69,16,'[{"step_confirmed":{"step":2}}]',3458711907);
INSERT INTO "entries" VALUES(70,16,'[{"step_failed":{"step":2,"at":1795334181572463825,"failure":{"reason":"the worker reported an error: not yet"}}},{"job_failed":{"at":1795334181572463825,"reason":"step \"c\": the worker reported an error: not yet","step":2}}]',427831666);
INSERT INTO "entries" VALUES(71,16,'[{"job_retried":{"at":1795334181581191693,"round":1}},{"step_started":{"step":2,"attempt":2,"at":1795334181581191693}}]',2976685206);
INSERT INTO "entries" VALUES(72,17,'[{"job_created":{"message":{"never":false},"deadline":2110694181591147994}},{"step_started":{"step":0,"attempt":1,"at":1795334181591147994,"deadline":2106374181591147994}},{"step_skipped":{"step":1,"at":1795334181591147994}}]',3188779754);
INSERT INTO "entries" VALUES(73,16,'[{"step_confirmed":{"step":2}}]',3458711907);
INSERT INTO "entries" VALUES(74,17,'[{"step_confirmed":{"step":0}}]',715588161);
INSERT INTO "entries" VALUES(75,17,'[{"attempt_failed":{"step":0,"attempt":1,"at":1795334181652312595,"failure":{"reason":"the worker reported an error: try again"},"retry_at":1977875108627566769}}]',3191970951);
INSERT INTO "entries" VALUES(76,18,'[{"job_created":{"message":{"for":"a person"}}},{"step_started":{"step":0,"attempt":1,"at":1795334181652471934}}]',2610046855);
INSERT INTO "entries" VALUES(77,19,'[{"job_created":{"message":{"n":12}}},{"caller_joined":{"caller":{"reply_to":"answers","correlation_id":"mine"}}},{"step_started":{"step":0,"attempt":1,"at":1795334181672261474}}]',3813510228);
INSERT INTO "entries" VALUES(78,19,'[{"step_confirmed":{"step":0}}]',3082097939);
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
INSERT INTO "jobs" VALUES(1,X'00000000000040008000000000000001','chain',1,0,1,NULL,NULL,NULL,0,1795334180738734949,'running',NULL,1,2514990640);
INSERT INTO "jobs" VALUES(2,X'00000000000040008000000000000002','chain',1,0,2,NULL,NULL,NULL,0,1795334180795643701,'completed',1795334180874355031,0,453833159);
INSERT INTO "jobs" VALUES(3,X'00000000000040008000000000000003','chain',1,0,3,NULL,NULL,NULL,0,1795334180912776792,'failed',1795334181018144793,0,3415360366);
INSERT INTO "jobs" VALUES(4,X'00000000000040008000000000000004','chain',1,0,4,NULL,NULL,NULL,0,1795334181033032782,'running',NULL,1,3070891389);
INSERT INTO "jobs" VALUES(5,X'00000000000040008000000000000011','gather',2,0,5,NULL,NULL,NULL,0,1795334181048386991,'completed',1795334181260439950,0,3825580556);
INSERT INTO "jobs" VALUES(6,X'212C224D8EB988FD9CCBED7100000000','gather',2,1,5,5,1,0,1,1795334181094478196,'completed',1795334181194116570,0,4140181946);
INSERT INTO "jobs" VALUES(7,X'212C224D8EB988FD9CCBED7100000001','gather',2,1,5,5,1,1,1,1795334181095320474,'completed',1795334181229825623,0,1291380975);
INSERT INTO "jobs" VALUES(8,X'00000000000040008000000000000010','gather',2,0,8,NULL,NULL,NULL,0,1795334181287488345,'running',NULL,1,2187593006);
INSERT INTO "jobs" VALUES(9,X'DF6BFA5DB6538E1F90BE96A300000000','gather',2,1,8,8,1,0,1,1795334181361325838,'completed',1795334181464161963,0,4232129896);
INSERT INTO "jobs" VALUES(10,X'DF6BFA5DB6538E1F90BE96A300000001','gather',2,1,8,8,1,1,1,1795334181361467746,'completed',1795334181464311455,0,692924110);
INSERT INTO "jobs" VALUES(11,X'DF6BFA5DB6538E1F90BE96A300000002','gather',2,1,8,8,1,2,1,1795334181361484700,'running',NULL,1,1715629406);
INSERT INTO "jobs" VALUES(12,X'DF6BFA5DB6538E1F90BE96A300000003','gather',2,1,8,8,1,3,1,1795334181361498638,'running',NULL,1,3156717844);
INSERT INTO "jobs" VALUES(13,X'DF6BFA5DB6538E1F90BE96A300000004','gather',2,1,8,8,1,4,1,1795334181361510231,'running',NULL,1,2175347588);
INSERT INTO "jobs" VALUES(14,X'00000000000040008000000000000005','chain',1,0,14,NULL,NULL,NULL,0,1795334181464865730,'paused',NULL,1,1380796037);
INSERT INTO "jobs" VALUES(15,X'00000000000040008000000000000006','chain',1,0,15,NULL,NULL,NULL,0,1795334181491306456,'cancelled',1795334181494142684,0,3662731673);
INSERT INTO "jobs" VALUES(16,X'00000000000040008000000000000007','chain',1,0,16,NULL,NULL,NULL,0,1795334181496577683,'running',NULL,1,2259851330);
INSERT INTO "jobs" VALUES(17,X'00000000000040008000000000000008','patient',3,0,17,NULL,NULL,NULL,0,1795334181591091734,'running',NULL,1,1411910606);
INSERT INTO "jobs" VALUES(18,X'00000000000040008000000000000009','person',4,0,18,NULL,NULL,NULL,0,1795334181652271765,'running',NULL,1,2385865475);
INSERT INTO "jobs" VALUES(19,X'00000000000040008000000000000012','chain',1,0,19,NULL,NULL,NULL,0,1795334181672194378,'running',NULL,1,2022570743);
CREATE TABLE notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  body TEXT NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE "status_chain"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "a" TEXT NOT NULL DEFAULT '', "b" TEXT NOT NULL DEFAULT '', "c" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000001','running','2026-11-22T07:56:20.738Z','2026-11-22T07:56:20.795Z','COMPLETED','PENDING','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000002','completed','2026-11-22T07:56:20.795Z','2026-11-22T07:56:20.874Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000003','failed','2026-11-22T07:56:20.912Z','2026-11-22T07:56:21.018Z','COMPLETED','COMPLETED','FAILED');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000004','running','2026-11-22T07:56:21.033Z','2026-11-22T07:56:21.033Z','PENDING','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000005','paused','2026-11-22T07:56:21.464Z','2026-11-22T07:56:21.484Z','COMPLETED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000006','cancelled','2026-11-22T07:56:21.491Z','2026-11-22T07:56:21.494Z','CANCELLED','','');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000007','running','2026-11-22T07:56:21.496Z','2026-11-22T07:56:21.581Z','COMPLETED','COMPLETED','PENDING');
INSERT INTO "status_chain" VALUES('00000000-0000-4000-8000-000000000012','running','2026-11-22T07:56:21.672Z','2026-11-22T07:56:21.672Z','PENDING','','');
CREATE TABLE "status_gather"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "split" TEXT NOT NULL DEFAULT '', "items" TEXT NOT NULL DEFAULT '', "join" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000011','completed','2026-11-22T07:56:21.048Z','2026-11-22T07:56:21.260Z','COMPLETED','COMPLETED','COMPLETED');
INSERT INTO "status_gather" VALUES('00000000-0000-4000-8000-000000000010','running','2026-11-22T07:56:21.287Z','2026-11-22T07:56:21.340Z','COMPLETED','PENDING','');
CREATE TABLE "status_patient"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "late" TEXT NOT NULL DEFAULT '', "never" TEXT NOT NULL DEFAULT '', "last" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_patient" VALUES('00000000-0000-4000-8000-000000000008','running','2026-11-22T07:56:21.591Z','2026-11-22T07:56:21.591Z','PENDING','SKIPPED','');
CREATE TABLE "status_person"(job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL, "review" TEXT NOT NULL DEFAULT '', "tell" TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "status_person" VALUES('00000000-0000-4000-8000-000000000009','running','2026-11-22T07:56:21.652Z','2026-11-22T07:56:21.652Z','OPEN','');
CREATE INDEX jobs_by_id ON jobs(id);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item);
CREATE INDEX jobs_open ON jobs(number) WHERE open = 1;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX entries_by_job ON entries(job);
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_children_failed ON jobs(parent, state, step, item) WHERE parent IS NOT NULL AND state IN ('failed', 'cancelled');
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
